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

/// What must not come back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Identifiers.
    pub identifiers: BTreeSet<String>,
    /// Words, wherever they stand.
    pub words: BTreeSet<String>,
}

/// Reads the glossary: what stands behind "Formerly" in each of its lines.
pub fn replaced(glossary: &str) -> Replaced {
    let mut replaced = Replaced::default();
    for line in glossary.lines() {
        let Some((_, former)) = line.split_once("Formerly ") else {
            continue;
        };
        let quoted = |mark| former.split(mark).skip(1).step_by(2).map(str::to_owned);
        replaced.identifiers.extend(quoted('`'));
        replaced.words.extend(quoted('"'));
    }
    replaced
}

/// The places where one of them has come back: "file: word".
pub fn returned(replaced: &Replaced, source: &Source) -> Vec<String> {
    let mut names = BTreeSet::new();
    match source.text.parse() {
        Ok(tokens) if source.is("rs") => identifiers(tokens, &mut names),
        _ if source.is("md") => {}
        _ => names.extend(words(&source.text).map(str::to_owned)),
    }
    let lower = source.text.to_lowercase();
    let all: BTreeSet<_> = words(&lower).flat_map(|word| word.split('_')).collect();
    let identifiers = replaced
        .identifiers
        .intersection(&names)
        .map(String::as_str);
    let words = replaced
        .words
        .iter()
        .map(String::as_str)
        .filter(|word| all.contains(word));
    let found = identifiers.chain(words);
    found
        .map(|word| format!("{}: {word}", source.path))
        .collect()
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
        let replaced = replaced(
            "| requester | asks. Formerly `asker`, \"untold\", *place*. |\n| `window` | … |",
        );
        let check = |path: &str, text: &str| {
            returned(
                &replaced,
                &Source {
                    path: path.into(),
                    text: text.into(),
                },
            )
        };
        assert_eq!(check("a.rs", "fn ask(asker: u8) {}"), ["a.rs: asker"]);
        assert_eq!(
            check("a.rs", "/// The asker.\nfn asker_of(window: u8) {}"),
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
