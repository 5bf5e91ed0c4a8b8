//! Programs in C (`programs/*.c`), each of which tests one thing of libfabric's messages, over this provider and over
//! others: what these pass too is libfabric's rule, and no habit of this provider (X10).
//!
//! ```text
//!   programs/NAME.c ── cc ─► NAME ─┬─ FABRIC_PROVIDER=qnic   a and b on two nodes of host mode
//!                                  ├─ FABRIC_PROVIDER=tcp
//!                                  └─ FABRIC_PROVIDER=shm
//! ```
//! They are compiled against the headers of the distribution's libfabric, and run with its library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use qnic::NodeId;
use qnic_device::{ByteSize, Config, Device, NicSettings};
use qnic_images::{Cache, Library, Provisioner, Silent};

mod built;

/// The status of a program whose provider does not offer what it needs.
const SKIPPED: i32 = 77;

/// What other providers of libfabric 2.1 do not offer: provider and program. Collectives over `tcp` take libfabric's
/// provider `off_coll` beside, which does not keep to its man pages: its event of a join names another object than the
/// membership, its completions lack FI_COLLECTIVE, and its roots are ranks, not addresses.
const NOT_OFFERED: &[(&str, &str)] = &[
    ("tcp", "collectives"),
    ("shm", "collectives"),
    ("shm", "fence"),
    ("tcp", "fence"),
    ("tcp", "atomics"),
    ("tcp", "write_events"),
    ("shm", "write_events"),
];

fn sources() -> BTreeMap<String, PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let entries = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let sources = entries.filter(|path| path.extension().is_some_and(|it| it == "c"));
    let named = sources.map(|path| (path.file_stem().unwrap().to_string_lossy().into(), path));
    named.collect()
}

fn libfabric() -> Library {
    let provisioner = Provisioner::new(Cache::of_user().unwrap(), Arc::new(Silent));
    provisioner.libfabric().unwrap()
}

/// Runs a program over a provider; the nodes of qnic have their sockets in the folder.
fn run(library: &Library, program: &Path, provider: &str, folder: &Path) -> Output {
    let mut command = library.command(program);
    command
        .env("FABRIC_PROVIDER", provider)
        // Others are not loaded: some look for hardware.
        .env("FI_PROVIDER", provider)
        .env("FI_PROVIDER_PATH", folder)
        .env("QNIC_HOST_SOCKET", folder.join("0"))
        .env("SECOND_QNIC_HOST_SOCKET", folder.join("1"))
        .env("QNIC_HOST_MEMORY", "96MiB");
    command.output().unwrap()
}

/// Runs all programs over a provider; returns those that have not ended as expected, and what they say.
fn run_all(provider: &str, programs: &BTreeMap<String, PathBuf>, folder: &Path) -> Vec<String> {
    let library = libfabric();
    let mut failures = Vec::new();
    for (name, program) in programs {
        let ended = run(&library, program, provider, folder);
        let is_offered = !NOT_OFFERED.contains(&(provider, name.as_str()));
        let expected = if is_offered { 0 } else { SKIPPED };
        if ended.status.code() != Some(expected) {
            let said = String::from_utf8_lossy(&ended.stderr);
            failures.push(format!("{name} over {provider}: {}\n{said}", ended.status));
        }
    }
    failures
}

/// The programs, compiled into a folder.
fn compiled(folder: &Path) -> BTreeMap<String, PathBuf> {
    let library = libfabric();
    let programs = sources().into_iter().map(|(name, source)| {
        let program = folder.join(&name);
        library.compile(&source, &program).unwrap();
        (name, program)
    });
    programs.collect()
}

#[test]
fn all_programs_pass_over_this_provider() {
    let folder = tempfile::tempdir().unwrap();
    let programs = compiled(folder.path());
    std::fs::copy(built::library_file(), folder.path().join("libqnic-fi.so")).unwrap();
    let nics = [0, 1].map(|node| {
        let socket = folder.path().join(node.to_string());
        NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(256))
    });
    let device = Device::start(&Config::new(nics.into())).unwrap();
    let failures = run_all("qnic", &programs, folder.path());
    device.stop().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn all_programs_pass_over_the_providers_tcp_and_shm() {
    let folder = tempfile::tempdir().unwrap();
    let programs = compiled(folder.path());
    let failures = ["tcp", "shm"].map(|provider| run_all(provider, &programs, folder.path()));
    assert!(
        failures.concat().is_empty(),
        "{}",
        failures.concat().join("\n")
    );
}
