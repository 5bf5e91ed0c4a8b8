//! The checks, applied to the checkout.

use std::collections::BTreeSet;

use qnic_structure::requirements;
use qnic_structure::sources::{self, Source};

/// A document, and all other texts but those of this crate, which are about both.
fn document_and_others(path: &str) -> (String, Vec<Source>) {
    let extensions = ["rs", "c", "h", "md", "lua", "toml"];
    let mut sources = sources::read(&sources::checkout(), &extensions).unwrap();
    sources.retain(|source| !source.path.starts_with("tests/structure"));
    let index = sources
        .iter()
        .position(|source| source.path == path)
        .unwrap();
    (sources.remove(index).text, sources)
}

/// Every code that is cited is defined, and what is not built has no test. Prints for every
/// row the tests that cite it (`--nocapture`).
#[test]
fn requirements() {
    let (document, others) = document_and_others("docs/requirements.md");
    let rows = requirements::rows(&document);
    let defined: BTreeSet<_> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(defined.len(), rows.len(), "a row stands twice");

    let citations: Vec<_> = others.iter().flat_map(requirements::citations).collect();
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
