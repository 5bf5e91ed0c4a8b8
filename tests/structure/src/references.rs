//! What a module says of other modules: its imports, and the paths in its code.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, Macro, UseTree, Visibility};

/// A path as it is written, with its line.
pub(crate) type Written = (Vec<String>, usize);

/// What one module says, inline modules and test code left out.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// Names that imports bring in, and their paths.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// Paths whose names are all brought in.
    pub(crate) globs: Vec<Vec<String>>,
    /// Imports that are seen outside of the module.
    pub(crate) exports: Vec<Written>,
    /// All other paths: private imports, and code.
    pub(crate) uses: Vec<Written>,
}

impl References {
    pub(crate) fn of(items: &[Item]) -> Self {
        let mut references = Self::default();
        for item in items.iter().filter(|item| !matches!(item, Item::Mod(_))) {
            references.visit_item(item);
        }
        references
    }

    fn import(&mut self, tree: &UseTree, path: &mut Vec<String>, public: bool, line: usize) {
        let length = path.len();
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path, public, line);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, path, public, line);
                }
            }
            UseTree::Glob(_) => {
                self.globs.push(path.clone());
                self.note(path.clone(), public, line);
            }
            UseTree::Name(name) => {
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                let name = path.last().cloned().unwrap_or_default();
                self.imports.insert(name, path.clone());
                self.note(path.clone(), public, line);
            }
            UseTree::Rename(rename) => {
                if rename.ident != "self" {
                    path.push(rename.ident.to_string());
                }
                self.imports.insert(rename.rename.to_string(), path.clone());
                self.note(path.clone(), public, line);
            }
        }
        path.truncate(length);
    }

    fn note(&mut self, path: Vec<String>, public: bool, line: usize) {
        match public {
            true => self.exports.push((path, line)),
            false => self.uses.push((path, line)),
        }
    }

    /// Paths among the tokens of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut colons, mut line) = (0, 0);
        for token in tokens {
            let goes_on = match &token {
                TokenTree::Punct(punct) => punct.as_char() == ':' && colons < 2,
                TokenTree::Ident(_) => colons == 2 || path.is_empty(),
                _ => false,
            };
            if !goes_on {
                self.uses.push((std::mem::take(&mut path), line));
                colons = 0;
            }
            line = token.span().start().line;
            match token {
                TokenTree::Punct(_) if goes_on => colons += 1,
                TokenTree::Ident(ident) => {
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Group(group) => self.scan(group.stream()),
                _ => {}
            }
        }
        self.uses.push((path, line));
    }
}

impl<'ast> Visit<'ast> for References {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let public = !matches!(item.vis, Visibility::Inherited);
        self.import(
            &item.tree,
            &mut Vec::new(),
            public,
            item.span().start().line,
        );
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        if path.leading_colon.is_none() {
            self.uses.push((names.collect(), path.span().start().line));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, macro_: &'ast Macro) {
        self.scan(macro_.tokens.clone());
        visit::visit_macro(self, macro_);
    }

    /// `pub(in crate::core)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// Returns true for `#[test]`, and for a `#[cfg(…)]` that names tests or testing and does
/// not say "not".
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.contains("test") && !condition.contains("not")
        }
        meta => meta.path().is_ident("test"),
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines.
pub(crate) fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
