//! The kernel module has a lock file of its own. Packages that it shares with the workspace
//! must have the same version; else the tested code is not the code that
//! runs in the kernel.

use std::collections::BTreeSet;
use std::path::Path;

/// (name, version) of every package of a lock file that comes from a registry.
fn packages(path: &Path) -> BTreeSet<(String, String)> {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let field = |block: &str, name: &str| {
        let prefix = format!("{name} = \"");
        let line = block.lines().find_map(|line| line.strip_prefix(&prefix))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    text.split("[[package]]")
        .filter(|block| block.contains("source = \"registry"))
        .map(|block| {
            (
                field(block, "name").unwrap(),
                field(block, "version").unwrap(),
            )
        })
        .collect()
}

#[test]
fn the_module_is_built_from_the_versions_that_are_tested() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = packages(&here.join("../../Cargo.lock"));
    let module = packages(&here.join("../linux/kernel/Cargo.lock"));
    assert!(!module.is_empty());
    let other: Vec<_> = module.difference(&workspace).collect();
    assert!(
        other.is_empty(),
        "not in the workspace's lock file: {other:?}; run `cargo update` with `--precise` \
         in guest-driver/linux/kernel"
    );
}
