//! Words that are for people: a program, NIC, node, process or thread is "it", or has its name.
//!
//! The words, and the phrases in which they mean people, are in `prose.toml`. Comments, strings
//! and documents are checked; identifiers and what stands between backticks are not.

use proc_macro2::{TokenStream, TokenTree};
use toml::{Table, Value};

use crate::sources::Source;

/// What `prose.toml` says.
#[derive(Debug)]
pub struct Rules {
    words: Vec<String>,
    /// Phrases in which a word means people, or is quoted.
    pub people: Vec<String>,
}

impl Rules {
    /// Reads the lists of a file.
    ///
    /// # Errors
    /// Returns what is wrong if it is not TOML or lacks one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error| format!("{error}"))?;
        let list = |name: &str| {
            let list = table.get(name).and_then(Value::as_array);
            let list = list.ok_or(format!("no list `{name}`"))?;
            let texts = list.iter().filter_map(Value::as_str);
            Ok::<_, String>(texts.map(str::to_owned).collect())
        };
        Ok(Self {
            words: list("words")?,
            people: list("people")?,
        })
    }

    /// The places where `source` has one of the words: `file:line: words around it`. Those in a
    /// phrase about people are left out, and the phrase is added to `used`.
    pub fn found(&self, source: &Source, used: &mut Vec<String>) -> Vec<String> {
        let text = prose(source);
        let words: Vec<_> = words(&text).collect();
        let mut about_people = vec![false; words.len()];
        for phrase in &self.people {
            let parts: Vec<_> = phrase.split(' ').collect();
            for start in 0..words.len() {
                let end = start + parts.len();
                let here = words.get(start..end);
                if here
                    .is_some_and(|here| here.iter().map(|word| &*word.1).eq(parts.iter().copied()))
                {
                    about_people[start..end].fill(true);
                    used.push(phrase.clone());
                }
            }
        }
        let mut found = Vec::new();
        for (index, (line, word)) in words.iter().enumerate() {
            if self.words.contains(word) && !about_people[index] {
                let around = index.saturating_sub(4)..words.len().min(index + 6);
                let around: Vec<_> = words[around].iter().map(|word| &*word.1).collect();
                found.push(format!("{}:{line}: {}", source.path, around.join(" ")));
            }
        }
        found
    }
}

/// The words of a text in small letters, with their lines.
fn words(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    text.lines().enumerate().flat_map(|(index, line)| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let words = words.filter(|word| !word.is_empty());
        words.map(move |word| (index + 1, word.to_lowercase()))
    })
}

/// The text without its identifiers (of Rust) and what stands between backticks.
fn prose(source: &Source) -> String {
    let mut text = source.text.clone().into_bytes();
    if let (true, Ok(tokens)) = (source.is("rs"), source.text.parse()) {
        blank_identifiers(tokens, &mut text);
    }
    let text = String::from_utf8(text)
        .unwrap_or_default()
        .replace("\\n", "  ");
    let text = without_arguments(&text);
    let mut prose = String::new();
    for line in text.lines() {
        let quoted = line.matches('`').count() % 2 == 0;
        let parts = line.split('`').enumerate();
        let kept = parts.map(|(index, part)| if quoted && index % 2 == 1 { "_" } else { part });
        prose.extend(kept);
        prose.push('\n');
    }
    prose
}

/// The text without the names in `{name}` and `{name:?}`, which are identifiers.
fn without_arguments(text: &str) -> String {
    let mut parts = text.split('{');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let name = part.find(|c: char| !c.is_alphanumeric() && c != '_');
        let is_argument = |end: &usize| part[*end..].starts_with([':', '}']);
        kept += "{";
        kept += &part[name.filter(is_argument).unwrap_or(0)..];
    }
    kept
}

fn blank_identifiers(tokens: TokenStream, text: &mut [u8]) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => blank_identifiers(group.stream(), text),
            TokenTree::Ident(ident) => {
                let name = &mut text[ident.span().byte_range()];
                // The `doc` of a comment has the place of the comment.
                if name == ident.to_string().as_bytes() {
                    name.fill(b' ');
                }
            }
            _ => {}
        }
    }
}
