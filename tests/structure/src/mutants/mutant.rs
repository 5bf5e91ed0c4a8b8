//! All mutants of a source file: what the models must notice.
//!
//! | kind | what is done, one at a time |
//! |---|---|
//! | fence | each `fence()` is removed |
//! | store | each statement that is a store, or a call that stores, is removed |
//! | swap | each two statements of one block that store change places |
//! | order | each `Acquire` and `Release` becomes `Relaxed` |
//!
//! A function stores if its body does or calls one that does; `let` statements stay
//! where they are, since what follows needs them. Code under `#[cfg(test)]` is left
//! alone.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, ExprCall, ExprMethodCall, ExprPath, File, Item, Stmt};

/// A change of one source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// The function that is changed.
    pub(crate) function: String,
    /// What is done, in words and source text.
    pub(crate) what: String,
    /// Line of the (first) change.
    pub(crate) line: usize,
    /// Ranges of bytes, in order, and what replaces them.
    edits: Vec<(Range<usize>, String)>,
}

impl Mutant {
    /// The source with the change.
    pub(crate) fn apply(&self, source: &str) -> String {
        let mut text = source.to_owned();
        for (range, replacement) in self.edits.iter().rev() {
            text.replace_range(range.clone(), replacement);
        }
        text
    }
}

/// All mutants of a source text, in the order of their first line.
pub(crate) fn all(source: &str) -> Result<Vec<Mutant>> {
    let mut file = syn::parse_file(source).context("parse")?;
    file.items.retain(|item| match item {
        Item::Mod(module) => !is_test(&module.attrs),
        _ => true,
    });
    let mut finder = Finder {
        source,
        storing: storing_functions(&file),
        function: String::new(),
        mutants: Vec::new(),
    };
    finder.visit_file(&file);
    finder.mutants.sort_by_key(|mutant| mutant.line);
    Ok(finder.mutants)
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|flag| flag == "test")
    })
}

/// Names of what is called in a piece of code.
#[derive(Default)]
struct Calls(BTreeSet<String>);

impl Visit<'_> for Calls {
    fn visit_expr_call(&mut self, call: &ExprCall) {
        if let Expr::Path(path) = &*call.func {
            if let Some(last) = path.path.segments.last() {
                self.0.insert(last.ident.to_string());
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        self.0.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }
}

/// The functions of a file, and what each calls.
#[derive(Default)]
struct Functions(Vec<(String, BTreeSet<String>)>);

impl Functions {
    fn add(&mut self, name: String, body: &Block) {
        let mut calls = Calls::default();
        calls.visit_block(body);
        self.0.push((name, calls.0));
    }
}

impl Visit<'_> for Functions {
    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.add(function.sig.ident.to_string(), &function.block);
    }

    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.add(function.sig.ident.to_string(), &function.block);
    }
}

/// Names of the functions that store to shared memory, those of the traits included.
fn storing_functions(file: &File) -> BTreeSet<String> {
    let mut functions = Functions::default();
    functions.visit_file(file);
    let mut storing: BTreeSet<_> = ["store_u32", "store_u64", "store", "write_words"]
        .map(String::from)
        .into();
    loop {
        let before = storing.len();
        for (name, calls) in &functions.0 {
            if !calls.is_disjoint(&storing) {
                storing.insert(name.clone());
            }
        }
        if storing.len() == before {
            return storing;
        }
    }
}

struct Finder<'a> {
    source: &'a str,
    storing: BTreeSet<String>,
    function: String,
    mutants: Vec<Mutant>,
}

impl Finder<'_> {
    fn add(&mut self, what: String, mut edits: Vec<(Span, String)>) {
        edits.sort_by_key(|(span, _)| span.byte_range().start);
        let line = edits.first().map_or(0, |(span, _)| span.start().line);
        self.mutants.push(Mutant {
            function: self.function.clone(),
            what,
            line,
            edits: edits
                .into_iter()
                .map(|(span, text)| (span.byte_range(), text))
                .collect(),
        });
    }

    fn text(&self, span: Span) -> String {
        self.source[span.byte_range()].to_owned()
    }

    /// Source text on one line, without what repeats in each.
    fn short(&self, span: Span) -> String {
        let words: Vec<_> = self.source[span.byte_range()].split_whitespace().collect();
        let line = words.join(" ").replace("( ", "(").replace(", )", ")");
        let mut short: String = line.chars().take(70).collect();
        if short.len() < line.len() {
            short.push('…');
        }
        short
    }

    fn stores(&self, statement: &Stmt) -> bool {
        let mut calls = Calls::default();
        calls.visit_stmt(statement);
        !calls.0.is_disjoint(&self.storing)
    }

    fn in_function(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.function, name);
        visit(self);
        self.function = outer;
    }
}

/// Name of the function that a statement does nothing but call.
fn called(statement: &Stmt) -> Option<String> {
    match statement {
        Stmt::Expr(Expr::MethodCall(call), _) => Some(call.method.to_string()),
        Stmt::Expr(Expr::Call(call), _) => match &*call.func {
            Expr::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
            _ => None,
        },
        _ => None,
    }
}

impl Visit<'_> for Finder<'_> {
    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.in_function(function.sig.ident.to_string(), |finder| {
            visit::visit_impl_item_fn(finder, function);
        });
    }

    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.in_function(function.sig.ident.to_string(), |finder| {
            visit::visit_item_fn(finder, function);
        });
    }

    fn visit_block(&mut self, block: &Block) {
        let mut storing = Vec::new();
        for statement in &block.stmts {
            let span = statement.span();
            let name = called(statement);
            if name.as_deref() == Some("fence") {
                self.add("remove the fence".into(), vec![(span, String::new())]);
            } else if name.is_some_and(|name| self.storing.contains(&name)) {
                let what = format!("remove `{}`", self.short(span));
                self.add(what, vec![(span, String::new())]);
            }
            if matches!(statement, Stmt::Expr(..)) && self.stores(statement) {
                storing.push(span);
            }
        }
        for (index, first) in storing.iter().enumerate() {
            for second in &storing[index + 1..] {
                let what = format!(
                    "swap `{}` and `{}`",
                    self.short(*first),
                    self.short(*second)
                );
                let edits = vec![(*first, self.text(*second)), (*second, self.text(*first))];
                self.add(what, edits);
            }
        }
        for statement in &block.stmts {
            self.visit_stmt(statement);
        }
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        for argument in &call.args {
            let Expr::Path(ExprPath { path, .. }) = argument else {
                continue;
            };
            let names: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            let weak = match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["Ordering", order @ ("Acquire" | "Release")] => order.to_owned(),
                _ => continue,
            };
            let what = format!("weaken {weak} in `{}`", self.short(call.span()));
            self.add(what, vec![(path.span(), "Ordering::Relaxed".into())]);
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn helper(m: &M) {
    m.store_u32(3, 0, Ordering::Release);
}
fn f(m: &M) -> bool {
    m.store_u32(1, 1, Ordering::Relaxed);
    m.fence();
    helper(m);
    m.load_u32(2, Ordering::Acquire) == 0
}
#[cfg(test)]
mod tests {
    fn g(m: &M) {
        m.fence();
    }
}
";

    #[test]
    fn every_fence_store_pair_and_order_is_found_once() {
        let mutants = all(SOURCE).unwrap();
        let found: Vec<_> = mutants
            .iter()
            .map(|m| (m.line, m.function.as_str(), m.what.as_str()))
            .collect();
        let store = "m.store_u32(1, 1, Ordering::Relaxed);";
        let released = "m.store_u32(3, 0, Ordering::Release)";
        assert_eq!(
            found,
            [
                (2, "helper", format!("remove `{released};`").as_str()),
                (
                    2,
                    "helper",
                    format!("weaken Release in `{released}`").as_str()
                ),
                (5, "f", format!("remove `{store}`").as_str()),
                (5, "f", format!("swap `{store}` and `helper(m);`").as_str()),
                (6, "f", "remove the fence"),
                (7, "f", "remove `helper(m);`"),
                (
                    8,
                    "f",
                    "weaken Acquire in `m.load_u32(2, Ordering::Acquire)`"
                ),
            ]
        );
    }

    #[test]
    fn a_swap_changes_places_and_nothing_else() {
        let mutants = all(SOURCE).unwrap();
        let swap = mutants.iter().find(|m| m.what.starts_with("swap")).unwrap();
        let swapped = swap.apply(SOURCE);
        let body = "    helper(m);\n    m.fence();\n    m.store_u32(1, 1, Ordering::Relaxed);\n";
        assert!(swapped.contains(body), "{swapped}");
        assert_eq!(swapped.len(), SOURCE.len());
        let fence = mutants.iter().find(|m| m.what.contains("fence")).unwrap();
        assert_eq!(fence.apply(SOURCE).matches("m.fence()").count(), 1);
    }
}
