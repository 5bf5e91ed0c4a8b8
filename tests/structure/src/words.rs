//! Words that were replaced: docs/glossary.md names them behind "Formerly".
//!
//! | written | checked |
//! |---|---|
//! | `` `name` `` | no identifier of Rust or C has this name |
//! | "word" | nothing contains this word: neither code, nor comments, nor docs |
//! | *word* | not checked: it has other meanings that stay |

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

use crate::sources::Source;

/// What must not come back: the words behind "Formerly" in a cell of the glossary that stand
/// between two of `mark`.
pub fn replaced(glossary: &str, mark: char) -> BTreeSet<&str> {
    let former = |line| str::split(str::split_once(line, "Formerly ")?.1, '|').next();
    let marked = |cell| str::split(cell, mark).skip(1).step_by(2);
    glossary
        .lines()
        .filter_map(former)
        .flat_map(marked)
        .collect()
}

/// The places where a file has one of the replaced words of a glossary: "file: word".
pub fn returned(glossary: &str, source: &Source) -> Vec<String> {
    let mut names = BTreeSet::new();
    match source.text.parse() {
        Ok(tokens) if source.is("rs") => identifiers(tokens, &mut names),
        _ if source.is("md") => {}
        _ => names.extend(words(&source.text).map(str::to_owned)),
    }
    let text = source.text.to_lowercase();
    let all: BTreeSet<_> = words(&text).flat_map(|word| word.split('_')).collect();
    let mut found = replaced(glossary, '`');
    found.retain(|name| names.contains(*name));
    found.extend(replaced(glossary, '"').intersection(&all));
    let place = |word| format!("{}: {word}", source.path);
    found.into_iter().map(place).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn identifiers(tokens: TokenStream, names: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => _ = names.insert(ident.to_string()),
            TokenTree::Group(group) => identifiers(group.stream(), names),
            _ => {}
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn what_was_replaced_does_not_come_back() {
        let glossary =
            "| requester | asks. Formerly `asker`, \"untold\", *place*. | from `elsewhere` |\n| `window` | … |";
        let check = |path: &str, text: &str| {
            let (path, text) = (path.to_owned(), text.to_owned());
            returned(glossary, &Source { path, text })
        };
        assert_eq!(check("a.rs", "fn ask(asker: u8) {}"), ["a.rs: asker"]);
        assert_eq!(
            check(
                "a.rs",
                "/// The asker.\nfn asker_of(window: u8, elsewhere: u8) {}"
            ),
            [""; 0]
        );
        assert_eq!(
            check("a.rs", "// Untold: place\nfn f() {}"),
            ["a.rs: untold"]
        );
        assert_eq!(check("a.c", "int asker;"), ["a.c: asker"]);
        assert_eq!(check("a.md", "the asker is_untold"), ["a.md: untold"]);
    }
}
