//! The checks, applied to the checkout.

use std::collections::BTreeSet;
use std::fmt::Debug;

use qnic_structure::modules::{self, Tree};
use qnic_structure::requirements;
use qnic_structure::sources::{self, Source};

/// A document, and all other texts but those of this crate, which are about both.
fn document_and_others(path: &str) -> (String, Vec<Source>) {
    let extensions = ["rs", "c", "h", "md", "lua", "toml"];
    let mut sources = sources::read(&sources::checkout(), &extensions).unwrap();
    sources.retain(|source| !source.path.starts_with("tests/structure"));
    let index = sources.iter().position(|source| source.path == path);
    (sources.remove(index.unwrap()).text, sources)
}

fn assert_none<T: Debug>(found: impl IntoIterator<Item = T>, what: &str) {
    let found: Vec<_> = found.into_iter().collect();
    assert!(found.is_empty(), "{what}: {found:#?}");
}

/// Every code that is cited is defined, and what is not built has no test. Prints for every
/// row the tests that cite it (`--nocapture`).
#[test]
fn requirements() {
    let (document, others) = document_and_others("docs/requirements.md");
    let rows = requirements::rows(&document);
    let defined: BTreeSet<_> = rows.iter().map(|row| row.0).collect();
    assert_eq!(defined.len(), rows.len(), "a row stands twice");
    let citations: Vec<_> = others.iter().flat_map(requirements::citations).collect();
    let unknown = citations
        .iter()
        .filter(|cite| !defined.contains(&*cite.code));
    assert_none(unknown, "cited, but not in docs/requirements.md");

    for (code, state) in rows {
        let cite = citations.iter().filter(|cite| cite.code == code);
        let tests: BTreeSet<_> = cite.filter_map(|cite| cite.test.as_ref()).collect();
        println!("{code} ({state})");
        tests.iter().for_each(|test| println!("    {test}"));
        if tests.is_empty() {
            println!("    no test cites it");
        } else {
            assert_ne!(state, "no", "{code} has tests");
        }
    }
}

/// Arrows between the modules of the driver core go one way, and those of host mode and of
/// the library.
#[test]
fn modules_of_driver_and_library() {
    for crate_root in [
        "guest-driver/core/src",
        "guest-driver/host/src",
        "guest-lib/src",
    ] {
        let tree = Tree::read(&sources::checkout().join(crate_root)).unwrap();
        let arrows = tree.arrows();
        let circle = modules::circle(&arrows);
        assert!(circle.is_none(), "{crate_root}: {circle:#?}");
    }
}
