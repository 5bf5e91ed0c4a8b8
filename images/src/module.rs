//! Builds the guest's kernel module, `qnic.ko`, for a stock kernel.
//!
//! ```text
//! repository ──copy──▶ /src ┐
//! cargo vendor ──────▶ /vendor ├─ inside the build root: make M=/src/… ──▶ qnic.ko
//! distribution ──────▶ gcc, rustc, headers ┘
//! ```
//!
//! Compilers, headers and paths are the same on every host, and no network is
//! needed inside. The key is made of everything that goes in.

use std::fs;
use std::path::{Path, PathBuf};

use crate::build_root::{self, RUST_LIBRARY};
use crate::cache::Cache;
use crate::command::{command, run};
use crate::error::{Error, Result};
use crate::kernel;
use crate::kernel_series::KernelSeries;
use crate::key::Key;
use crate::progress::Progress;
use crate::root::Root;
use crate::sandbox::{run_in_root, Mount};
use crate::sources::{self, Sources, GLUE, KBUILD};

/// Version of the code that builds modules; part of their keys.
const RECIPE: u32 = 1;
/// The name of the module's file.
const MODULE: &str = "qnic.ko";

/// Makes cargo take every crate from `/vendor`.
const CARGO_CONFIG: &str = "\
[source.crates-io]
replace-with = \"vendored\"

[source.vendored]
directory = \"/vendor\"

[net]
offline = true
";

/// `qnic.ko` for the kernel of `series`, built from the clone in `repo`.
pub(crate) fn provision(
    cache: &Cache,
    progress: &dyn Progress,
    series: KernelSeries,
    repo: &Path,
) -> Result<PathBuf> {
    let sources = Sources::of(repo)?;
    let release = kernel::release(cache, progress, series)?;
    let build_root = build_root::provision(cache, progress)?;
    let mut key = Key::new("module", RECIPE);
    let hash = sources.hash()?;
    key.add(&release).add(build_root.key()).add(&hash);
    let name = format!("module-{}", key.finish());
    let dir = cache.artefact(&name, progress, |dir| {
        let vendor = vendor(cache, progress, &build_root, &sources, &hash)?;
        // All kernels share a working directory, for cargo builds the same for each
        // of them; so there is one build at a time.
        let _lock = cache.lock("module", progress)?;
        let copy = cache.service("build")?.join("module");
        let toolchain = format!("{} {}", build_root.key(), vendor.display());
        sources.copy_to(&copy, &toolchain, &hash)?;
        sources::remove_objects(&copy)?;
        build(progress, &build_root, &vendor, &copy, &release)?;
        let built = copy.join(KBUILD).join(MODULE);
        let place = dir.join(MODULE);
        fs::copy(&built, &place).map_err(Error::io("copy", &built))?;
        Ok(())
    })?;
    Ok(dir.join(MODULE))
}

/// The crates that the module and the standard library are made from.
fn vendor(
    cache: &Cache,
    progress: &dyn Progress,
    build_root: &Root,
    sources: &Sources<'_>,
    hash: &str,
) -> Result<PathBuf> {
    let library = build_root.dir().join(RUST_LIBRARY);
    let mut key = Key::new("vendor", RECIPE);
    key.add_file(&sources.lock_file())?;
    key.add_file(&library.join("Cargo.lock"))?;
    let name = format!("vendor-{}", key.finish());
    cache.artefact(&name, progress, |dir| {
        progress.step("fetching the crates of the kernel module");
        let copy = tempfile::tempdir().map_err(Error::io("use", &std::env::temp_dir()))?;
        sources.copy_to(copy.path(), "", hash)?;
        let mut vendor = command("cargo");
        vendor.args(["vendor", "--locked", "--quiet", "--manifest-path"]);
        vendor.arg(copy.path().join(GLUE).join("Cargo.toml"));
        vendor.arg("--sync").arg(library.join("Cargo.toml"));
        vendor.arg(dir);
        // The standard library's manifests use what only its compiler allows, and
        // settings meant for the caller's own build do not concern this one.
        vendor.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
        run("fetch the crates of the kernel module", &mut vendor).map(drop)
    })
}

fn build(
    progress: &dyn Progress,
    build_root: &Root,
    vendor: &Path,
    copy: &Path,
    release: &str,
) -> Result<()> {
    let home = copy.join(".cargo-home");
    fs::create_dir_all(&home).map_err(Error::io("create", &home))?;
    let config = home.join("config.toml");
    fs::write(&config, CARGO_CONFIG).map_err(Error::io("write", &config))?;
    progress.step(&format!("building the kernel module for {release}"));
    let mounts = [
        Mount {
            host: copy,
            inside: "/src",
        },
        Mount {
            host: vendor,
            inside: "/vendor",
        },
    ];
    let script = format!(
        "set -e\n\
         export CARGO_HOME=/src/.cargo-home SOURCE_DATE_EPOCH=0\n\
         make --no-print-directory -C /lib/modules/{release}/build M=/src/{KBUILD} CARGO_EXTRA=--offline modules\n\
         strip --strip-debug --enable-deterministic-archives /src/{KBUILD}/{MODULE}\n"
    );
    run_in_root(
        "build the kernel module",
        build_root,
        &mounts,
        &script,
        progress,
    )
}
