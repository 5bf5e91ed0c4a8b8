//! The checks, applied to the checkout.

use std::collections::BTreeSet;

use qnic_structure::{requirements, sources};

/// Every code that is cited is defined, and what is not built has no test. Prints for every
/// row the tests that cite it (`--nocapture`).
#[test]
fn requirements() {
    let sources = sources::read(&sources::checkout(), &["rs", "c", "h", "md", "lua"]).unwrap();
    let is_document = |path: &str| path == "docs/requirements.md";
    let document = sources
        .iter()
        .find(|source| is_document(&source.path))
        .unwrap();
    let rows = requirements::rows(&document.text);
    let defined: BTreeSet<_> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(defined.len(), rows.len(), "a row stands twice");

    // This crate's own texts are about codes.
    let others = sources
        .iter()
        .filter(|source| !is_document(&source.path) && !source.path.starts_with("tests/structure"));
    let citations: Vec<_> = others.flat_map(requirements::citations).collect();
    let unknown: Vec<_> = citations
        .iter()
        .filter(|it| !defined.contains(it.code.as_str()))
        .collect();
    assert!(
        unknown.is_empty(),
        "cited, but not in docs/requirements.md: {unknown:#?}"
    );

    for row in &rows {
        let cite = citations.iter().filter(|citation| citation.code == row.id);
        let tests: BTreeSet<_> = cite.filter_map(|citation| citation.test.as_ref()).collect();
        println!("{} ({})", row.id, row.state);
        tests.iter().for_each(|test| println!("    {test}"));
        if tests.is_empty() {
            println!("    no test cites it");
        }
        assert!(
            row.state != "no" || tests.is_empty(),
            "{} is tested, but not built",
            row.id
        );
    }
}
