//! The file that cargo has built.

use std::path::PathBuf;

/// Where cargo puts the library: beside the folder of its tests.
pub(crate) fn library_file() -> PathBuf {
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
    library.expect("cargo builds it before the tests").clone()
}
