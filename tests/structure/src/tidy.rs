//! Lengths of files and functions, and links of documents that lead nowhere.

use std::path::Path;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

use crate::sources::Source;

/// Most lines of a file.
pub const MAX_FILE: usize = 600;

/// Most lines of a function, from its name to its last brace.
pub const MAX_FUNCTION: usize = 70;

/// Functions of `source` that are longer than [`MAX_FUNCTION`]: `file:line name (lines)`.
///
/// # Errors
/// Returns an error if it is not Rust.
pub fn long_functions(source: &Source) -> syn::Result<Vec<String>> {
    let file = syn::parse_file(&source.text)?;
    let mut lengths = Lengths::default();
    lengths.visit_file(&file);
    let long = lengths.0.into_iter();
    let long = long.filter(|(.., lines)| *lines > MAX_FUNCTION);
    Ok(long
        .map(|(name, line, lines)| format!("{}:{line} {name} ({lines})", source.path))
        .collect())
}

/// Name, line and number of lines of each function.
#[derive(Default)]
struct Lengths(Vec<(String, usize, usize)>);

impl Lengths {
    fn note(&mut self, signature: &Signature, block: &Block) {
        let line = |span: Span| (span.start().line, span.end().line);
        let (first, _) = line(signature.span());
        let (_, last) = line(block.span());
        let name = signature.ident.to_string();
        self.0.push((name, first, last + 1 - first));
    }
}

impl<'ast> Visit<'ast> for Lengths {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.note(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.note(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.note(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Links of the document `source`, in the tree at `root`, to files that are not there, and to
/// headings that their document has not.
pub fn dead_links(root: &Path, source: &Source) -> Vec<String> {
    let above = Path::new(&source.path).parent().unwrap_or(Path::new(""));
    let links = links(&source.text).into_iter();
    let local = links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
    let dead = local.filter(|link| {
        let (path, heading) = link.split_once('#').unwrap_or((link, ""));
        let file = match path {
            "" => root.join(&source.path),
            path => root.join(above).join(path),
        };
        let has_heading = || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            headings(&text).iter().any(|one| one == heading)
        };
        !file.exists()
            || (file.extension().is_some_and(|it| it == "md")
                && !heading.is_empty()
                && !has_heading())
    });
    dead.map(|link| format!("{}: {link}", source.path))
        .collect()
}

/// The targets of `[text](target)`, outside of code blocks.
fn links(text: &str) -> Vec<&str> {
    let mut in_code = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence && !line.starts_with("    ")
    });
    let mut found = Vec::new();
    for line in prose {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, more)) = after.split_once(')') else {
                break;
            };
            found.push(target);
            rest = more;
        }
    }
    found
}

/// The headings of a document as links name them.
fn headings(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| -> String {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    lines.map(slug).collect()
}

/// The number that `text` gives the constant `name`.
pub fn constant(text: &str, name: &str) -> Option<u32> {
    let (_, rest) = text.split_once(&format!("pub const {name}: "))?;
    let (_, value) = rest.split_once("= ")?;
    value.split_once(';')?.0.parse().ok()
}
