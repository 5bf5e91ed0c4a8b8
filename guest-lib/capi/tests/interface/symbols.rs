//! Exported symbols are those of the version script, with its versions; what a release had stays.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use expect_test::expect_file;
use object::elf::{FileHeader64, DT_NEEDED};
use object::read::elf::{Dyn, FileHeader, Sym};
use object::Endianness;
use syn::{Item, ItemFn, Visibility};

use crate::families::{file, source, FAMILIES};

/// The functions that C calls, of all families.
pub(crate) fn functions() -> Vec<ItemFn> {
    let sources = FAMILIES.iter().flat_map(|(_, sources)| *sources);
    let items = sources.flat_map(|name| syn::parse_file(&source(name)).unwrap().items);
    let function = |item| match item {
        Item::Fn(function) => Some(function),
        _ => None,
    };
    let is_exported = |function: &ItemFn| {
        let attributes = &function.attrs;
        matches!(function.vis, Visibility::Public(_))
            && attributes
                .iter()
                .any(|attribute| attribute.path().is_ident("no_mangle"))
    };
    items.filter_map(function).filter(is_exported).collect()
}

/// The version script: each version with its symbols.
fn versions() -> Vec<(String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(file("qnic.map")).unwrap();
    let mut versions: Vec<(String, BTreeSet<String>)> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(version) = line.strip_suffix(" {") {
            versions.push((version.to_owned(), BTreeSet::new()));
        } else if let Some(symbol) = line.strip_suffix(';').filter(|it| it.starts_with("qnic_")) {
            versions.last_mut().unwrap().1.insert(symbol.to_owned());
        }
    }
    versions
}

fn script(versions: &[(String, BTreeSet<String>)]) -> String {
    let mut text = String::new();
    let mut before = String::new();
    for (version, symbols) in versions {
        let symbols: String = symbols
            .iter()
            .map(|symbol| format!("    {symbol};\n"))
            .collect();
        let local = if before.is_empty() {
            "  local:\n    *;\n"
        } else {
            ""
        };
        text += &format!("{version} {{\n  global:\n{symbols}{local}}}{before};\n");
        before = format!(" {version}");
    }
    text
}

/// What is new goes into the last version. Tests that read the script look at this first, so that one
/// run renews all files.
fn check_script() {
    static CHECKED: Mutex<()> = Mutex::new(());
    let _checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    let names: BTreeSet<_> = functions()
        .iter()
        .map(|it| it.sig.ident.to_string())
        .collect();
    let mut versions = versions();
    let known: BTreeSet<_> = versions
        .iter()
        .flat_map(|(_, symbols)| symbols.clone())
        .collect();
    let gone: Vec<_> = known.difference(&names).collect();
    assert!(
        gone.is_empty(),
        "programs use them; a function stays for ever: {gone:?}"
    );
    let new = names.difference(&known).cloned();
    versions.last_mut().unwrap().1.extend(new);
    expect_file![file("qnic.map")].assert_eq(&script(&versions));
}

#[test]
fn the_version_script_names_every_function() {
    check_script();
}

/// Installs everything below a folder, with the library that cargo has put beside this program.
fn install(folder: &Path) {
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libqnic_capi.a");
    let output = Command::new("make")
        .args(["install", "PREFIX=/usr"])
        .arg(format!("STATICLIB={}", library.display()))
        .arg(format!("DESTDIR={}", folder.display()))
        .current_dir(file(""))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Exported symbols with their versions, and the libraries that are needed.
fn dynamic(library: &Path) -> (BTreeSet<(String, String)>, BTreeSet<String>) {
    let bytes = std::fs::read(library).unwrap();
    let header = FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, &*bytes).unwrap();
    let symbols = sections
        .symbols(endian, &*bytes, object::elf::SHT_DYNSYM)
        .unwrap();
    let versions = sections.versions(endian, &*bytes).unwrap().unwrap();
    let mut exported = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.st_bind() == object::elf::STB_LOCAL {
            continue;
        }
        let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings()).unwrap());
        // The versions are symbols themselves.
        if symbol.st_shndx(endian) == object::elf::SHN_ABS {
            continue;
        }
        let version = versions
            .version(versions.version_index(endian, index).index())
            .unwrap();
        let version = version.map(|version| String::from_utf8_lossy(version.name()).into_owned());
        exported.insert((name.into_owned(), version.unwrap_or_default()));
    }
    let (entries, strings) = sections.dynamic(endian, &*bytes).unwrap().unwrap();
    let strings = sections.strings(endian, &*bytes, strings).unwrap();
    let needed = entries
        .iter()
        .filter(|entry| entry.d_tag(endian) == DT_NEEDED);
    let name = |entry: &object::elf::Dyn64<Endianness>| {
        let name = entry.string(endian, strings).unwrap();
        String::from_utf8_lossy(name).into_owned()
    };
    (exported, needed.map(name).collect())
}

#[test]
#[cfg_attr(not(has_make), ignore = "no C compiler, or no make")]
fn the_shared_library_exports_what_the_version_script_says() {
    check_script();
    let folder = tempfile::tempdir().unwrap();
    install(folder.path());
    let (exported, needed) = dynamic(&folder.path().join("usr/lib/libqnic.so.0"));
    let versions = versions();
    let with_version = |(version, symbols): &(String, BTreeSet<String>)| {
        let symbols = symbols.iter();
        symbols
            .map(|symbol| (symbol.clone(), version.clone()))
            .collect::<Vec<_>>()
    };
    let expected: BTreeSet<_> = versions.iter().flat_map(with_version).collect();
    let wrong: Vec<_> = exported.symmetric_difference(&expected).collect();
    assert!(
        wrong.is_empty(),
        "exported, or in the script, and not both: {wrong:?}"
    );
    let of_the_system = ["libc.so", "libgcc_s.so", "libm.so", "ld-linux"];
    let other = needed
        .iter()
        .filter(|it| !of_the_system.iter().any(|known| it.starts_with(known)));
    assert_eq!(other.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// The whole header in both languages, and each family alone.
#[test]
#[cfg_attr(not(all(has_c, has_cxx)), ignore = "no compiler of C or of C++")]
fn headers_are_c11_and_cxx17() {
    let families = FAMILIES.iter().map(|(name, _)| format!("qnic/{name}.h"));
    for header in families.chain(["qnic.h".to_owned()]) {
        for (compiler, standard, language) in [("cc", "c11", "c"), ("c++", "c++17", "c++")] {
            let output = Command::new(compiler)
                .arg(format!("-std={standard}"))
                .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"])
                .args(["-x", language, "-include"])
                .arg(file("include").join(&header))
                .arg("/dev/null")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{header}, {standard}: {said}");
        }
    }
}
