//! Every function of the interface is called by a C program that looks at what it does.

use std::collections::BTreeSet;

use crate::cluster::{file, Checker, Cluster};

/// Runs a program of this folder.
fn run(name: &str, checker: Checker) {
    Cluster::new().run(&format!("tests/programs/{name}.c"), checker);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn memory_transfers_and_notifications() {
    run("transfers", Checker::Sanitizers);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn messages_names_and_groups() {
    run("messages", Checker::Sanitizers);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn locks_channels_datagrams_streams_and_machines() {
    run("objects", Checker::Sanitizers);
}

/// Under valgrind no program forks: it does not know memory that children do not share.
#[test]
#[cfg_attr(not(has_valgrind), ignore = "no C compiler, or no valgrind")]
fn valgrind_finds_nothing() {
    for name in ["transfers", "messages", "objects"] {
        run(name, Checker::Valgrind);
    }
}

#[test]
fn c_programs_call_every_function() {
    let script = std::fs::read_to_string(file("qnic.map")).unwrap();
    let mut functions: BTreeSet<_> = words(&script).collect();
    assert!(functions.len() > 150, "{}", functions.len());
    for folder in ["examples", "tests/programs"] {
        for entry in std::fs::read_dir(file(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "c" || it == "h") {
                let text = std::fs::read_to_string(&path).unwrap();
                functions.retain(|function| !words(&text).any(|word| word == *function));
            }
        }
    }
    assert!(functions.is_empty(), "no C program calls {functions:#?}");
}

/// The names in a text that begin as those of functions do.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("qnic_"))
}
