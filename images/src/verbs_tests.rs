//! The tests that come with libibverbs, for its Python bindings (pyverbs): the distribution has them among the
//! documentation of the bindings.
//!
//! A guest sees them through a directory of the host (`share`), as Python is large. Nothing of it is installed: the
//! directory's own loader starts its own Python.

use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::command::{command, run};
use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::{Error, Result};
use crate::key::files_below;
use crate::root::{artefact_of, unpack, PackageSet, Root, LIBRARIES};

/// The package with bindings and tests.
const BINDINGS: &str = "python3-pyverbs";

/// Beginnings of the names of the packages that are needed to run them.
const NEEDED: [&str; 17] = [
    "ibverbs-providers",
    "libbz2",
    "libc6",
    "libexpat",
    "libffi",
    "libgcc-s1",
    "libibverbs1",
    "liblzma",
    "libnl-",
    "libpython3",
    "librdmacm",
    "libssl3",
    "libuuid",
    "libz",
    "python3",
    "zlib1g",
    "libtinfo",
];

const PACKAGES: PackageSet<'static> = PackageSet {
    kind: "verbs-tests",
    label: "the tests of libibverbs",
    suite: STABLE,
    names: BINDINGS,
    keep: &|package| NEEDED.iter().any(|begin| package.starts_with(begin)),
    skip: &[],
};

/// Where the tests are in the package, and in the directory that is made.
const DOCUMENTED: &str = "./usr/share/doc/rdma-core/tests";
const TESTS: &str = "tests";

/// Beginnings of the names of tests that need a vendor's device. All tests import what they have in common.
const VENDORS: [&str; 3] = ["test_cuda", "test_efa", "test_mlx5"];

/// Takes the files of the folder `$3`, whose path has five parts, from the package `$1` to `$2`.
const TAKE: &str = r#"
trap 'exit 1' TERM
{ dpkg-deb --fsys-tarfile "$1" || kill $$; } | tar --extract --directory="$2" --strip-components=5 "$3"
"#;

/// The directory with Python, bindings and tests (`tests/run_tests.py`).
pub(crate) fn provision(cx: Context<'_>) -> Result<PathBuf> {
    artefact_of(cx, &PACKAGES, |dir, files, packages| {
        cx.progress.step("unpacking the tests of libibverbs");
        unpack(cx, files, packages, PACKAGES.skip, dir)?;
        let bindings = packages
            .iter()
            .position(|package| package.name() == BINDINGS)
            .and_then(|index| files.get(index));
        let bindings = bindings.ok_or_else(|| Error::unexpected("the package of pyverbs", dir))?;
        take_tests(bindings, dir)?;
        compile(&Root { dir: dir.into() })
    })
}

fn take_tests(package: &Path, dir: &Path) -> Result<()> {
    let mut take = command("sh");
    take.args(["-c", TAKE, "sh"])
        .args([package, dir])
        .arg(DOCUMENTED);
    run("unpack the tests of libibverbs", &mut take)?;
    let tests = dir.join(TESTS);
    for file in files_below(&tests, |_| false)? {
        let (path, name) = (tests.join(&file), file.to_string_lossy().into_owned());
        if VENDORS.iter().any(|vendor| name.starts_with(vendor)) {
            fs::remove_file(path)?;
        } else if name.ends_with(".gz") {
            let what = format!("uncompress {name}");
            run(&what, command("gzip").arg("--decompress").arg(path))?;
        }
    }
    Ok(())
}

/// Has Python keep what it makes of the files that the tests import: an emulated guest is slow at it.
fn compile(root: &Root) -> Result<()> {
    let tests = root.dir.join(TESTS);
    let bindings = root.dir.join("usr/lib/python3/dist-packages");
    let mut import = command(root.loader());
    import
        .arg("--library-path")
        .arg(root.dir.join(LIBRARIES))
        .arg(root.dir.join("usr/bin/python3"))
        .args(["-c", "import tests"])
        .current_dir(&root.dir)
        .env("PYTHONHOME", root.dir.join("usr"))
        .env(
            "PYTHONPATH",
            format!("{}:{}", bindings.display(), tests.display()),
        )
        .env_remove("PYTHONDONTWRITEBYTECODE");
    run("import the tests of libibverbs", &mut import).map(drop)
}
