//! The file that loaders open.

use std::path::PathBuf;

use object::{Object, ObjectSymbol};

/// Where cargo puts the library: beside the folder of its tests.
fn library() -> Vec<u8> {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let places = [
        folder.join("libqnic_fi.so"),
        folder.join("../libqnic_fi.so"),
    ];
    let newest = |path: &&PathBuf| path.metadata().and_then(|it| it.modified()).ok();
    let library = places
        .iter()
        .filter(|path| path.exists())
        .max_by_key(newest);
    std::fs::read(library.expect("cargo builds it before the tests")).unwrap()
}

/// Names of other libraries' functions would take the place of the loader's own (X10).
#[test]
fn only_the_entry_is_exported() {
    let library = library();
    let library = object::File::parse(&*library).unwrap();
    let exported: Vec<&str> = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert_eq!(exported, ["fi_prov_ini"]);
}

/// It finds the functions of its loader by itself, so it loads where libfabric is hidden.
#[test]
fn nothing_of_libfabric_is_linked() {
    let library = library();
    let library = object::File::parse(&*library).unwrap();
    let wanted = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined());
    let wanted: Vec<&str> = wanted.map(|symbol| symbol.name().unwrap()).collect();
    assert!(wanted.contains(&"dlsym"), "{wanted:?}");
    let of_libfabric = |name: &&&str| name.starts_with("fi_") || name.starts_with("ofi_");
    assert_eq!(wanted.iter().find(of_libfabric), None);
}
