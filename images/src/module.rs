//! Builds the guest's kernel module, `qnic.ko`, for a stock kernel, and beside it the device of libibverbs and
//! the example of a module that uses it.
//!
//! ```text
//! repository ──copy──▶ /src ┐
//! cargo vendor ──────▶ /vendor ├─ inside the build root: make M=/src/… ──▶ qnic.ko
//! distribution ──────▶ gcc, rustc, headers ┘
//! ```
//!
//! An installed qnic has modules for the kernels that were current when it was packaged ([`Prebuilt`]), and the crates
//! for all others.
//!
//! Compilers, headers and paths are the same on every host, and no network is
//! needed inside. The key is made of everything that goes in.

use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::build_root::{self, RUST_LIBRARY};
use crate::command::{command, registry_is_unreachable, run_with, tail};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::kernel;
use crate::kernel_series::KernelSeries;
use crate::key::Key;
use crate::prebuilt::Prebuilt;
use crate::root::Root;
use crate::sandbox::run_in_root;
use crate::sources::{self, Sources, GLUE, KBUILD};

/// Version of the code that builds modules; part of their keys.
const RECIPE: u32 = 3;
/// The name of the module's file.
const MODULE: &str = "qnic.ko";
/// The name of the example's.
const EXAMPLE: &str = "qnic_ping.ko";
/// The name of that of the device of libibverbs.
const VERBS: &str = "qnic_ib.ko";

/// Where headers that the build root lacks are seen, in the copy of the sources. Their links lead
/// to `lib`, two directories up.
const HEADERS: &str = ".headers";

/// Makes cargo take every crate from `/vendor`.
const CARGO_CONFIG: &str = "\
[source.crates-io]
replace-with = \"vendored\"

[source.vendored]
directory = \"/vendor\"

[net]
offline = true
";

/// What modules are built with, besides their sources.
struct Parts {
    release: String,
    build_root: Root,
    /// Headers that the build root lacks.
    headers: Option<PathBuf>,
}

/// The parts of modules for the kernel of `series`, from the cache or the mirror.
fn parts(cx: Context<'_>, series: KernelSeries) -> Result<Parts> {
    let release = kernel::release(cx, series)?;
    let build_root = build_root::provision(cx)?;
    let headers = match series {
        KernelSeries::Generic => Some(build_root::headers(cx, &release)?),
        KernelSeries::Stable | KernelSeries::Backports => None,
    };
    Ok(Parts {
        release,
        build_root,
        headers,
    })
}

/// Has all that [`provision`] takes from the mirror.
pub(crate) fn prepare(cx: Context<'_>, series: KernelSeries, repo: &Path) -> Result<()> {
    let sources = Sources::of(repo)?;
    match prebuilt(cx, series, &sources.hash()?)? {
        Some(_) => Ok(()),
        None => parts(cx, series).map(drop),
    }
}

/// The directory with the modules for the kernel of `series`, if they were built before.
fn prebuilt(cx: Context<'_>, series: KernelSeries, sources: &str) -> Result<Option<PathBuf>> {
    let Some(prebuilt) = cx.prebuilt else {
        return Ok(None);
    };
    Ok(prebuilt.find(&kernel::release(cx, series)?, sources))
}

/// Builds the modules of the sources in `repo` for the kernel of `series`, and adds them to `into`. Returns the
/// release of the kernel.
pub(crate) fn prebuild(
    cx: Context<'_>,
    series: KernelSeries,
    repo: &Path,
    into: &Prebuilt,
) -> Result<String> {
    let module = provision(cx, series, repo)?;
    let built = module.parent().unwrap_or(&module);
    let release = kernel::release(cx, series)?;
    into.add(&release, &Sources::of(repo)?.hash()?, built)?;
    Ok(release)
}

/// `qnic.ko` for the kernel of `series`: one that was built before, or else built from the sources in `repo`.
pub(crate) fn provision(cx: Context<'_>, series: KernelSeries, repo: &Path) -> Result<PathBuf> {
    let sources = Sources::of(repo)?;
    let hash = sources.hash()?;
    if let Some(dir) = prebuilt(cx, series, &hash)? {
        return Ok(dir.join(MODULE));
    }
    let parts = parts(cx, series)?;
    let Parts {
        release,
        build_root,
        ..
    } = &parts;
    let mut key = Key::new("module", RECIPE);
    key.add(release).add(build_root.key()).add(&hash);
    let name = format!("module-{}", key.finish());
    let dir = cx.cache.artefact(&name, cx.progress, |dir| {
        let vendor = vendor(cx, build_root, &sources, &hash)?;
        // All kernels share a working directory, because cargo builds the same crates for each. So
        // one build runs at a time.
        let _lock = cx.cache.lock("module", cx.progress)?;
        let copy = cx.cache.service("build")?.join("module");
        let toolchain = format!("{} {}", build_root.key(), vendor.display());
        sources.copy_to(&copy, &toolchain, &hash)?;
        sources::remove_objects(&copy)?;
        build(cx, &parts, &vendor, &copy)?;
        for file in [MODULE, EXAMPLE, VERBS] {
            fs::copy(copy.join(KBUILD).join(file), dir.join(file))?;
        }
        Ok(())
    })?;
    Ok(dir.join(MODULE))
}

/// The example, beside the module that [`provision`] has returned.
pub(crate) fn example(module: &Path) -> PathBuf {
    module.with_file_name(EXAMPLE)
}

/// The module of the device of libibverbs, beside the module that [`provision`] has returned.
pub(crate) fn verbs(module: &Path) -> PathBuf {
    module.with_file_name(VERBS)
}

/// The crates that the module and the standard library are made from: those that the sources come with, else from
/// the registry.
pub(crate) fn vendor(
    cx: Context<'_>,
    build_root: &Root,
    sources: &Sources<'_>,
    hash: &str,
) -> Result<PathBuf> {
    let library = build_root.dir.join(RUST_LIBRARY);
    if let Some(vendor) = sources.vendor_for(&library.join("Cargo.lock")) {
        return Ok(vendor);
    }
    let mut key = Key::new("vendor", RECIPE);
    key.add_file(&sources.lock_file())?;
    key.add_file(&library.join("Cargo.lock"))?;
    let name = format!("vendor-{}", key.finish());
    cx.cache.artefact(&name, cx.progress, |dir| {
        let what = "fetch the crates of the kernel module";
        cx.progress.step("fetching the crates of the kernel module");
        let copy = tempfile::tempdir()?;
        sources.copy_to(copy.path(), "", hash)?;
        let mut vendor = command("cargo");
        vendor.args(["vendor", "--locked", "--quiet", "--manifest-path"]);
        vendor.arg(copy.path().join(GLUE).join("Cargo.toml"));
        vendor.arg("--sync").arg(library.join("Cargo.toml"));
        vendor.arg(dir);
        // Cargo has to read manifests of the standard library, which only the library's own
        // compiler may. Flags of the caller's builds do not concern this one.
        vendor.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
        let explain = |stderr: &str| {
            registry_is_unreachable(stderr).then(|| Error::RegistryUnreachable {
                what: what.to_owned(),
                detail: tail(stderr),
            })
        };
        run_with(what, &mut vendor, |_| {}, explain).map(drop)
    })
}

fn build(cx: Context<'_>, parts: &Parts, vendor: &Path, copy: &Path) -> Result<()> {
    let Parts {
        release,
        build_root,
        headers,
    } = parts;
    let home = copy.join(".cargo-home");
    fs::create_dir_all(&home)?;
    fs::write(home.join("config.toml"), CARGO_CONFIG)?;
    cx.progress
        .step(&format!("building the kernel module for {release}"));
    let mut mounts = vec![(copy, "/src"), (vendor, "/vendor")];
    let mut tree = format!("/lib/modules/{release}/build");
    if let Some(headers) = headers {
        fs::create_dir_all(copy.join(HEADERS))?;
        tree = format!("/src/{HEADERS}");
        mounts.push((headers, &tree));
    }
    let script = format!(
        "set -e\n\
         export CARGO_HOME=/src/.cargo-home SOURCE_DATE_EPOCH=0\n\
         make --no-print-directory -C {tree} M=/src/{KBUILD} CARGO_EXTRA=--offline modules\n\
         cd /src/{KBUILD}\n\
         strip --strip-debug --enable-deterministic-archives {MODULE} {EXAMPLE} {VERBS}\n"
    );
    let what = "build the kernel module";
    run_in_root(what, &build_root.dir, &mounts, &script, cx.progress)
}
