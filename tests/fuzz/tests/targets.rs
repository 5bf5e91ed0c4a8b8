//! Every target without libFuzzer: its corpus, its regressions, and mutations of both.

use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;

use qnic_fuzz::inputs::Kept;
use qnic_fuzz::mutation::Mutator;
use qnic_fuzz::{inputs, Target, TARGETS};

/// The variable that `cargo qnic test --all` sets: all mutations, instead of an eighth of them.
const LONG: &str = "QNIC_LONG";

fn kept(target: &Target) -> Vec<Kept> {
    target.kept().unwrap()
}

/// Runs an input. If it fails, keeps it where `cargo qnic fuzz` can run it again.
fn run(target: &Target, data: &[u8]) {
    if let Err(panic) = catch_unwind(|| (target.run)(data)) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join(format!("fuzz-{}", target.name));
        std::fs::write(&file, data).unwrap();
        let (name, file) = (target.name, file.display());
        eprintln!("again: cargo qnic fuzz {name} --input {file}");
        eprintln!("keep it in tests/fuzz/regressions/{name}");
        resume_unwind(panic);
    }
}

/// What is kept, and mutations of it.
fn check(name: &str) {
    let target = Target::named(name).unwrap();
    let kept = kept(target);
    for input in &kept {
        run(target, &input.data);
    }
    let good: Vec<_> = kept.iter().map(|input| &input.data[..]).collect();
    let mutations = match std::env::var_os(LONG) {
        Some(_) => target.mutations,
        None => target.mutations / 8,
    };
    // Other ones in each run; one that fails is kept.
    let mut mutator = Mutator::new(fastrand::u64(..), target.longest);
    for _ in 0..mutations {
        run(target, &mutator.next(&good));
    }
}

macro_rules! check {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_target_is_checked() {
            let checked = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|target| target.name), checked);
        }
    };
}

check!(frames commands control verbs cluster_file udp ring vhost_user ethernet);

/// Each target has a corpus, and each file of the folders belongs to a target.
#[test]
fn what_is_kept_belongs_to_a_target() {
    for folder in ["corpus", "regressions"] {
        for entry in std::fs::read_dir(inputs::folder().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(Target::named(&name).is_some(), "{folder}/{name}");
        }
    }
    for target in TARGETS {
        let inputs = kept(&target);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for input in inputs {
            let bytes = input.data.len();
            assert!(bytes <= target.longest, "{}: {bytes}", input.path.display());
        }
    }
}
