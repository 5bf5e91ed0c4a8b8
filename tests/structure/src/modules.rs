//! Arrows between the modules of a crate.
//!
//! A module is a file or an inline module; test code (`#[cfg(test)]`, feature `testing`) is
//! left out. An arrow goes from a module that names something, in a `use` or in its code, to
//! the module that *defines* it: re-exports are followed, so a folder may re-export what its
//! files define. At every level of the tree, the children of a module, each with all that is
//! below it, must not import each other in a circle.
//!
//! A module and its own children are one room, so no circle is seen between these two: it
//! declares them and uses what they define; they extend what it defines (`impl Core` in a file
//! of `core/`). The field's practice is the same, and the compiler keeps the rest: a child sees
//! the private fields of its parents, a neighbour does not.
//!
//! Methods are called without a path and draw no arrow. Private fields keep them where their
//! type is defined, or below.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::Ident;
use syn::{Attribute, Expr, ExprLit, Item, Lit, Visibility};

use crate::references::{self, References};

/// An arrow, and the first line that draws it.
#[derive(Debug, Clone)]
pub struct Arrow {
    /// The module that names something.
    pub from: String,
    /// The module that defines it.
    pub to: String,
    /// File and line.
    pub place: String,
}

struct Module {
    file: PathBuf,
    items: Vec<Item>,
    references: References,
}

impl Module {
    /// Returns true if one of its items, child modules included, has this name.
    fn defines(&self, name: &str) -> bool {
        let is_it = |item| references::head(item).1.is_some_and(|ident| ident == name);
        self.items.iter().any(is_it)
    }
}

/// The modules of a crate, by their paths (`crate::core::events`).
#[derive(Default)]
pub struct Tree {
    modules: BTreeMap<String, Module>,
}

impl Tree {
    /// Reads the crate that begins with this file.
    ///
    /// # Errors
    /// Returns what is wrong if a file is missing or does not parse.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut tree = Self::default();
        tree.add_file("crate", root, directory(root))?;
        Ok(tree)
    }

    fn add_file(&mut self, name: &str, file: &Path, folder: &Path) -> Result<(), String> {
        let wrong = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        let items = syn::parse_file(&text).map_err(|error| wrong(&error))?.items;
        self.add(name, file, folder, &items)
    }

    /// Adds a module and its children, whose files are in `folder`.
    fn add(
        &mut self,
        name: &str,
        file: &Path,
        folder: &Path,
        items: &[Item],
    ) -> Result<(), String> {
        let is_ours = |item: &&Item| !references::is_test(references::head(item).0);
        let items: Vec<_> = items.iter().filter(is_ours).cloned().collect();
        for item in &items {
            let Item::Mod(child) = item else { continue };
            let path = format!("{name}::{}", child.ident);
            let below = folder.join(child.ident.to_string());
            let inside = below.join("mod.rs");
            match (&child.content, path_attribute(&child.attrs)) {
                (Some((_, items)), _) => self.add(&path, file, &below, items)?,
                (None, Some(place)) => {
                    let place = directory(file).join(place);
                    self.add_file(&path, &place, directory(&place))?;
                }
                (None, None) if inside.exists() => self.add_file(&path, &inside, &below)?,
                (None, None) => self.add_file(&path, &below.with_extension("rs"), &below)?,
            }
        }
        let module = Module {
            file: file.to_owned(),
            references: References::of(&items),
            items,
        };
        self.modules.insert(name.to_owned(), module);
        Ok(())
    }

    /// All arrows, the first of each pair of modules.
    pub fn arrows(&self) -> Vec<Arrow> {
        let mut arrows = BTreeMap::new();
        for (from, module) in &self.modules {
            for reference in &module.references.all {
                let path = &reference.path;
                // A name alone that the module defines, or that is a variable.
                if path.len() == 1 && module.defines(&path[0]) {
                    continue;
                }
                let to = self.resolve(from, path, 0).filter(|to| to != from);
                let Some(to) = to else { continue };
                if !reference.export || !is_below(&to, from) {
                    let place = format!("{}:{}", module.file.display(), reference.line);
                    arrows.entry((from.clone(), to)).or_insert(place);
                }
            }
        }
        let arrow = |((from, to), place)| Arrow { from, to, place };
        arrows.into_iter().map(arrow).collect()
    }

    /// The module that defines what a path means in a module, if it is one of this crate.
    fn resolve(&self, within: &str, path: &[String], depth: usize) -> Option<String> {
        let module = self.modules.get(within)?;
        let (first, rest) = path.split_first().filter(|_| depth < 16)?;
        match first.as_str() {
            "crate" => self.descend("crate", rest, depth),
            "self" => self.descend(within, rest, depth),
            "super" => {
                let (parent, _) = within.rsplit_once("::")?;
                match rest.first().is_some_and(|next| next == "super") {
                    true => self.resolve(parent, rest, depth),
                    false => self.descend(parent, rest, depth),
                }
            }
            name if module.defines(name) => self.descend(within, path, depth),
            name => {
                let import = module.references.imports.get(name)?;
                // `use name;` and `use name::…` of another crate.
                let own = import.first().is_some_and(|first| first != name);
                own.then(|| self.resolve(within, &[import, rest].concat(), depth + 1))?
            }
        }
    }

    fn descend(&self, within: &str, path: &[String], depth: usize) -> Option<String> {
        let module = self.modules.get(within)?;
        let Some((first, rest)) = path.split_first() else {
            return Some(within.to_owned());
        };
        let child = format!("{within}::{first}");
        if self.modules.contains_key(&child) {
            return self.descend(&child, rest, depth);
        }
        let here = || Some(within.to_owned());
        if depth >= 16 || module.defines(first) {
            return here();
        }
        if let Some(import) = module.references.imports.get(first) {
            let path = [import, rest].concat();
            return self.resolve(within, &path, depth + 1).or_else(here);
        }
        let mut globs = module.references.globs.iter();
        let through_glob = globs.find_map(|glob| {
            let of = self.resolve(within, glob, depth + 1)?;
            let found = self.modules.get(&of)?.defines(first);
            found.then(|| self.descend(&of, path, depth + 1))?
        });
        through_glob.or_else(here)
    }

    /// The fields of a struct that are not private; those of a tuple have no name.
    ///
    /// # Errors
    /// Returns an error if there is not exactly one struct of that name.
    pub fn open_fields(&self, name: &str) -> Result<Vec<String>, String> {
        let items = self.modules.values().flat_map(|module| &module.items);
        let structs = items.filter_map(|item| match item {
            Item::Struct(item) if item.ident == name => Some(item),
            _ => None,
        });
        let structs: Vec<_> = structs.collect();
        let [only] = structs[..] else {
            return Err(format!("{} structs are named {name}", structs.len()));
        };
        let open = |field: &&syn::Field| !matches!(field.vis, Visibility::Inherited);
        let name =
            |field: &syn::Field| field.ident.as_ref().map_or(String::new(), Ident::to_string);
        Ok(only.fields.iter().filter(open).map(name).collect())
    }
}

fn directory(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// The file that `#[path = "…"]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let path = attributes.iter().find(|it| it.path().is_ident("path"))?;
    match &path.meta.require_name_value().ok()?.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(path),
            ..
        }) => Some(path.value()),
        _ => None,
    }
}

fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent)
        .is_some_and(|rest| rest.starts_with("::"))
}

/// The arrows between the children of a module, each with all that is below it.
pub fn between_children(arrows: &[Arrow], parent: &str) -> Vec<Arrow> {
    let child = |path: &str| {
        let below = path.strip_prefix(parent)?.strip_prefix("::")?;
        Some(below.split("::").next()?.to_owned())
    };
    let between = |arrow: &Arrow| {
        let (from, to) = (child(&arrow.from)?, child(&arrow.to)?);
        let place = arrow.place.clone();
        (from != to).then_some(Arrow { from, to, place })
    };
    arrows.iter().filter_map(between).collect()
}

/// Modules with one parent that all reach each other.
#[derive(Debug)]
pub struct Circle {
    /// Their names.
    pub modules: BTreeSet<String>,
    /// A shortest way from one of them back to itself.
    pub way: Vec<Arrow>,
}

/// The circles among the children of each module.
pub fn circles(arrows: &[Arrow]) -> Vec<Circle> {
    let above = |path: &Arrow| {
        let from = Some(path.from.clone());
        std::iter::successors(from, |path| Some(path.rsplit_once("::")?.0.to_owned()))
    };
    let parents: BTreeSet<_> = arrows.iter().flat_map(above).collect();
    let mut circles = Vec::new();
    for parent in parents {
        let mut arrows = between_children(arrows, &parent);
        while let Some(way) = shortest_circle(&arrows) {
            let mut modules = reached(&arrows, &way[0].from);
            modules.retain(|module| reached(&arrows, module).contains(&way[0].from));
            arrows.retain(|arrow| !modules.contains(&arrow.from) || !modules.contains(&arrow.to));
            circles.push(Circle { modules, way });
        }
    }
    circles
}

/// All modules that a way of arrows leads to from this one.
fn reached(arrows: &[Arrow], from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut ends = vec![from];
    while let Some(end) = ends.pop() {
        let next = arrows.iter().filter(|arrow| arrow.from == end);
        ends.extend(
            next.filter_map(|arrow| reached.insert(arrow.to.clone()).then_some(&*arrow.to)),
        );
    }
    reached
}

fn shortest_circle(arrows: &[Arrow]) -> Option<Vec<Arrow>> {
    let way_back = |first| {
        let mut reached = BTreeSet::new();
        let mut ways = VecDeque::from([vec![first]]);
        while let Some(way) = ways.pop_front() {
            let end: &Arrow = way[way.len() - 1];
            if end.to == way[0].from {
                return Some(way.into_iter().cloned().collect());
            }
            if reached.insert(&end.to) {
                let next = arrows.iter().filter(|arrow| arrow.from == end.to);
                ways.extend(next.map(|arrow| [&way[..], &[arrow]].concat()));
            }
        }
        None
    };
    arrows.iter().filter_map(way_back).min_by_key(Vec::len)
}
