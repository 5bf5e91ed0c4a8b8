//! What a module says of other modules: its imports, and the paths in its code.

use std::collections::BTreeMap;

use proc_macro2::Ident;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, Macro, UseTree, Visibility};

/// A path as it is written.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    /// An import that is seen outside of the module.
    pub(crate) export: bool,
}

/// What one module says, inline modules and test code left out.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// Names that imports bring in, and their paths.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// Paths whose names are all brought in.
    pub(crate) globs: Vec<Vec<String>>,
    /// All paths, of imports and in code.
    pub(crate) all: Vec<Reference>,
}

impl References {
    pub(crate) fn of(items: &[Item]) -> Self {
        let mut references = Self::default();
        for item in items.iter().filter(|item| !matches!(item, Item::Mod(_))) {
            references.visit_item(item);
        }
        references
    }

    fn note(&mut self, path: Vec<String>, line: usize) {
        let export = false;
        self.all.push(Reference { path, line, export });
    }

    fn import(&mut self, tree: &UseTree, mut path: Vec<String>, export: bool, line: usize) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                return self.import(&part.tree, path, export, line);
            }
            UseTree::Group(group) => {
                let trees = group.items.iter();
                return trees.for_each(|tree| self.import(tree, path.clone(), export, line));
            }
            UseTree::Glob(_) => self.globs.push(path.clone()),
            UseTree::Name(syn::UseName { ident })
            | UseTree::Rename(syn::UseRename { ident, .. }) => {
                if ident != "self" {
                    path.push(ident.to_string());
                }
                let name = match tree {
                    UseTree::Rename(rename) => Some(rename.rename.to_string()),
                    _ => path.last().cloned(),
                };
                self.imports.insert(name.unwrap_or_default(), path.clone());
            }
        }
        self.all.push(Reference { path, line, export });
    }
}

impl<'ast> Visit<'ast> for References {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(head(item).0) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let export = !matches!(item.vis, Visibility::Inherited);
        self.import(&item.tree, Vec::new(), export, item.span().start().line);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|part| part.ident.to_string());
        if path.leading_colon.is_none() {
            self.note(names.collect(), path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    /// The tokens of a macro need not be Rust: all that looks like a path counts.
    fn visit_macro(&mut self, macro_: &'ast Macro) {
        let line = macro_.span().start().line;
        let text = macro_.tokens.to_string().replace(" :: ", "::");
        let paths = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        for path in paths.map(|path| path.trim_matches(':')) {
            self.note(path.split("::").map(str::to_owned).collect(), line);
        }
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

/// The attributes of an item, and the name that it defines.
pub(crate) fn head(item: &Item) -> (&[Attribute], Option<&Ident>) {
    macro_rules! head {
        ($($kind:ident),*) => {
            match item {
                $(Item::$kind(item) => (&item.attrs, Some(&item.ident)),)*
                Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
                Item::Impl(item) => (&item.attrs, None),
                Item::Use(item) => (&item.attrs, None),
                _ => (&[], None),
            }
        };
    }
    head!(Const, Enum, Mod, Static, Struct, Trait, Type)
}
