//! The checks, applied to the checkout.

use std::collections::BTreeSet;
use std::fmt::Debug;

use qnic_structure::modules::{between_children, circle, Tree};
use qnic_structure::sources::{self, Source};
use qnic_structure::{requirements, words};

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

/// No word that was replaced comes back.
#[test]
fn glossary() {
    let (glossary, others) = document_and_others("docs/glossary.md");
    let returned = |source| words::returned(&glossary, source);
    assert_none(
        others.iter().flat_map(returned),
        "words that docs/glossary.md replaces",
    );
}

/// The NIC has no circle of imports, and neither have the crates around it.
#[test]
fn arrows_go_one_way() {
    for folder in [
        "abi",
        "apps",
        "device-backend",
        "device-backend/nic",
        "guest-driver/core",
        "guest-driver/host",
        "guest-lib",
        "images",
    ] {
        let tree = Tree::read(&sources::checkout().join(folder).join("src")).unwrap();
        assert_none(circle(&tree.arrows()).unwrap_or_default(), "a circle");
    }
}

/// Core and transport import neither each other nor what stands on them; protocols import
/// the trait, and not each other; all fields of `Nic` are private.
#[test]
fn the_nic_can_grow() {
    let tree = Tree::read(&sources::checkout().join("device-backend/nic/src")).unwrap();
    let arrows = tree.arrows();
    let mut upwards = between_children(&arrows, "crate");
    upwards.retain(|arrow| match arrow.from.as_str() {
        "nic" => false,
        "protocols" => arrow.to == "nic",
        _ => ["nic", "protocols", "core", "transport"].contains(&&*arrow.to),
    });
    assert_none(upwards, "imports from below, or between core and transport");
    let mut protocols = between_children(&arrows, "crate::protocols");
    protocols.retain(|arrow| arrow.to != "protocol");
    assert_none(protocols, "imports between protocols");
    assert!(arrows
        .iter()
        .any(|arrow| arrow.from.starts_with("crate::protocols::")));
    assert_none(
        tree.open_fields("Nic").unwrap(),
        "fields of Nic that are not private",
    );
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
