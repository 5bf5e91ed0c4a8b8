//! The packages of a tree, found by their manifests: where the sources of each begin, and
//! which others it depends on.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::modules::{circles, Circle, Tree};
use crate::sources;

/// A package of the tree.
#[derive(Debug)]
pub struct Package {
    /// Its name, as in its manifest.
    pub name: String,
    /// Its folder below the root, with `/`.
    pub folder: String,
    /// The names of the packages that it needs to be built; those of its tests are left out.
    pub needs: Vec<String>,
    manifest: Table,
}

/// All packages below `root`, in the order of their folders.
///
/// # Errors
/// Returns what is wrong if a file cannot be read, or if a manifest is not TOML.
pub fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let files = sources::read(root, &["toml"]).map_err(|error| error.to_string())?;
    let mut packages = Vec::new();
    for file in files {
        let Some(folder) = file.path.strip_suffix("Cargo.toml") else {
            continue;
        };
        let wrong = |error| format!("{}: {error}", file.path);
        let manifest: Table = file.text.parse().map_err(wrong)?;
        let table = |name: &str| manifest.get(name).and_then(Value::as_table);
        let Some(name) = table("package").and_then(|package| package["name"].as_str()) else {
            continue;
        };
        packages.push(Package {
            name: name.to_owned(),
            folder: folder.trim_end_matches('/').to_owned(),
            needs: needs(&manifest),
            manifest,
        });
    }
    Ok(packages)
}

/// What a package depends on to be built, on any platform.
fn needs(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(Table::values);
    let tables = targets.filter_map(Value::as_table).chain([manifest]);
    let kinds =
        tables.flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)));
    let all = kinds.flatten().filter_map(Value::as_table).flatten();
    let name = |(key, value): (&String, &Value)| {
        let renamed = value.get("package").and_then(Value::as_str);
        renamed.unwrap_or(key).to_owned()
    };
    all.map(name).collect()
}

impl Package {
    /// The root files of its crates: library, programs, examples, tests and benchmarks.
    pub fn roots(&self, root: &Path) -> Vec<PathBuf> {
        let folder = root.join(&self.folder);
        let mut roots: Vec<_> = ["build.rs", "src/lib.rs", "src/main.rs"]
            .map(|file| folder.join(file))
            .into();
        for several in ["src/bin", "examples", "tests", "benches"] {
            let entries = std::fs::read_dir(folder.join(several))
                .into_iter()
                .flatten();
            for entry in entries.flatten().map(|entry| entry.path()) {
                match entry.is_dir() {
                    true => roots.push(entry.join("main.rs")),
                    false if entry.extension().is_some_and(|it| it == "rs") => roots.push(entry),
                    false => {}
                }
            }
        }
        let targets = self.manifest.values().flat_map(|value| match value {
            Value::Array(tables) => tables.iter().collect(),
            table => vec![table],
        });
        let named = targets.filter_map(|target| target.get("path")?.as_str());
        roots.extend(named.map(|path| folder.join(path)));
        roots.retain(|path| path.exists());
        roots.sort();
        roots.dedup();
        roots
    }
}

/// The circles of imports in each package of the tree at `root`, with the names of the packages.
///
/// # Errors
/// Returns what is wrong if a manifest or a module cannot be read.
pub fn packages_with_circles(root: &Path) -> Result<Vec<(String, Vec<Circle>)>, String> {
    let mut found = Vec::new();
    for package in packages(root)? {
        let mut here = Vec::new();
        for file in package.roots(root) {
            here.extend(circles(&Tree::read(&file)?.arrows()));
        }
        if !here.is_empty() {
            found.push((package.name, here));
        }
    }
    Ok(found)
}

/// Most packages of the tree. The last two are `qnic-capi` and `qnic-fabric`: what C programs link, and what
/// libfabric loads, are libraries of their own, and cargo makes such a one of a whole package.
pub const MOST_PACKAGES: usize = 27;

/// Names of packages that are not those of their folders: the folders are the user's card.
const CARD: [(&str, &str); 3] = [
    ("device-backend", "qnic-device"),
    ("guest-lib", "qnic"),
    ("qemu-config", "qnic-cluster"),
];

/// The rows of a document's table of rooms, ``| `folder` (package) | … |``: folders and packages.
fn rooms(document: &str) -> Vec<(&str, &str)> {
    let row = |line| {
        let (folder, rest) = str::strip_prefix(line, "| `")?.split_once("` (")?;
        let (package, _) = rest.split_once(") |")?;
        Some((folder.trim_end_matches('/'), package))
    };
    document.lines().filter_map(row).collect()
}

/// What is wrong with packages, whose table of rooms is in `document`: one has no row of its own,
/// or not the name of its folder, or it needs a package that stands below it, or is a part of the
/// product and needs one of the tools or the tests.
pub fn misplaced(packages: &[Package], document: &str) -> Vec<String> {
    let rooms = rooms(document);
    let place = |name: &str| rooms.iter().position(|room| room.1 == name);
    let is_product =
        |folder: &str| !["cli", "tests"].contains(&folder.split('/').next().unwrap_or(""));
    let mut wrong = Vec::new();
    for Package {
        name,
        folder,
        needs,
        ..
    } in packages
    {
        let last = folder.rsplit('/').next().unwrap_or(folder);
        let card = CARD.iter().find(|card| card.0 == folder);
        let expected = card.map_or(format!("qnic-{last}"), |card| card.1.to_owned());
        if *name != expected {
            wrong.push(format!("{folder}: the package is {name}, not {expected}"));
        }
        let own = rooms.iter().filter(|room| **room == (folder, name)).count();
        if own != 1 {
            wrong.push(format!("{folder} ({name}) has {own} rows"));
        }
        for need in packages.iter().filter(|other| needs.contains(&other.name)) {
            if place(&need.name) > place(name) {
                wrong.push(format!("{name} needs {}, which stands below it", need.name));
            }
            if is_product(folder) && !is_product(&need.folder) {
                wrong.push(format!("{name} is of the product, and needs {}", need.name));
            }
        }
    }
    let is_there = |room: &&(&str, &str)| packages.iter().any(|package| package.name == room.1);
    let gone = rooms.iter().filter(|room| !is_there(room));
    wrong.extend(gone.map(|room| format!("{} ({}) is no package", room.0, room.1)));
    wrong
}
