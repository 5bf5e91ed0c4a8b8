//! Words that were replaced: `replaced.txt` names them, and the glossary's word behind each.
//!
//! | written | checked |
//! |---|---|
//! | `` `name` `` | no identifier of Rust or C has this name |
//! | "word" | no file contains this word: neither code, nor comments, nor docs |

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

use crate::sources::Source;

/// The list for this checkout.
pub const REPLACED: &str = include_str!("../replaced.txt");

/// What must not come back: the words of a list that stand between two of `mark`.
pub fn replaced(list: &str, mark: char) -> BTreeSet<&str> {
    let rows = list.lines().filter(|line| !line.starts_with('#'));
    let marked = |row| str::split(row, mark).skip(1).step_by(2);
    rows.flat_map(marked).collect()
}

/// The places where a file has one of the replaced words of a list: "file: word".
pub fn returned(list: &str, source: &Source) -> Vec<String> {
    let mut names = BTreeSet::new();
    match source.text.parse() {
        Ok(tokens) if source.is("rs") => identifiers(tokens, &mut names),
        _ if source.is("md") => {}
        _ => names.extend(words(&source.text).map(str::to_owned)),
    }
    let text = source.text.to_lowercase();
    let all: BTreeSet<_> = words(&text).flat_map(|word| word.split('_')).collect();
    let mut found = replaced(list, '`');
    found.retain(|name| names.contains(*name));
    found.extend(replaced(list, '"').intersection(&all));
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
        let list = "# | `window` | … |\n`asker`, \"untold\" → requester\n";
        let check = |path: &str, text: &str| {
            let (path, text) = (path.to_owned(), text.to_owned());
            returned(list, &Source { path, text })
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
