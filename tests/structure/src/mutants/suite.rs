//! The suites: models, the files that they run, and a small workspace for each.
//!
//! | suite | models | files |
//! |---|---|---|
//! | page-table | `guest-driver/driver/tests/page_lock` | both sides of the shadow page table |
//! | queues | `guest-lib/src/model` | both sides of what a process shares with its NIC: command queue, wake requests, notification queue, completion queue |
//! | pools | `abi/shared/src/pool/model.rs` | both sides of the queues of shared pools |
//! | ring | `device-backend/links/src/shm/model.rs` | the ring between device processes |
//!
//! The crates of all but the queues have the names of the real ones and
//! nothing else of them, so that a mutant builds in seconds; the models of the queues run
//! the whole NIC, in a copy of the checkout. Versions are those of the checkout's lock
//! file.

use std::fs;

use anyhow::{ensure, Context, Result};

use crate::scratch::{checkout, Scratch};

/// A file that models run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Where it is, below the checkout.
    pub(crate) path: &'static str,
    /// Where its copy is, below the suite's workspace.
    pub(crate) copy: &'static str,
    /// The functions that the models run; none are named if it is all of them.
    functions: &'static [&'static str],
}

impl Source {
    /// Says whether the models run a function of it.
    pub(crate) fn is_run(&self, function: &str) -> bool {
        self.functions.is_empty() || self.functions.contains(&function)
    }

    /// Its text in the checkout.
    pub(crate) fn read(&self) -> Result<String> {
        let path = checkout().join(self.path);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }
}

/// Models, and what they run.
pub(crate) struct Suite {
    /// Name on the command line, and of its workspace.
    pub(crate) name: &'static str,
    /// Heading of its table.
    pub(crate) title: &'static str,
    /// The files.
    pub(crate) sources: &'static [Source],
    /// Arguments of cargo that run the models, and of the test program.
    pub(crate) test: &'static [&'static str],
    pub(crate) filter: Option<&'static str>,
    /// Makes the workspace, but for the files.
    pub(crate) prepare: fn(&Scratch) -> Result<()>,
}

/// All suites.
pub(crate) const SUITES: [Suite; 4] = [
    Suite {
        name: "page-table",
        title: "Mutants: the shadow page table",
        sources: &[
            Source {
                path: "guest-driver/driver/src/memory/shadow.rs",
                copy: "driver/src/shadow.rs",
                functions: &[],
            },
            Source {
                path: "device-backend/nic/src/core/page_table.rs",
                copy: "nic/src/page_table.rs",
                functions: &[],
            },
        ],
        test: &["test", "-p", "qnic-driver", "--test", "page_lock"],
        filter: None,
        prepare: page_table,
    },
    Suite {
        name: "queues",
        title: "Mutants: the queues between a process and its NIC",
        sources: &[
            Source {
                path: "guest-lib/src/core/notifications/reader.rs",
                copy: "guest-lib/src/core/notifications/reader.rs",
                functions: &["arm", "take"],
            },
            Source {
                path: "abi/shared/src/window/mod.rs",
                copy: "abi/shared/src/window/mod.rs",
                functions: &[],
            },
            Source {
                path: "abi/shared/src/window/wakes.rs",
                copy: "abi/shared/src/window/wakes.rs",
                functions: &[],
            },
            Source {
                path: "guest-lib/src/core/completion.rs",
                copy: "guest-lib/src/core/completion.rs",
                functions: &["done", "drain_errors"],
            },
            Source {
                path: "device-backend/nic/src/core/notification.rs",
                copy: "device-backend/nic/src/core/notification.rs",
                functions: &["count", "enter", "head"],
            },
            Source {
                path: "device-backend/nic/src/core/host_area.rs",
                copy: "device-backend/nic/src/core/host_area.rs",
                functions: &["record_error", "publish_head"],
            },
            Source {
                path: "device-backend/nic/src/core/lanes.rs",
                copy: "device-backend/nic/src/core/lanes.rs",
                functions: &["publish"],
            },
            Source {
                path: "guest-lib/src/core/messages/ring.rs",
                copy: "guest-lib/src/core/messages/ring.rs",
                functions: &["tail", "drain"],
            },
            Source {
                path: "device-backend/nic/src/core/completion_queue.rs",
                copy: "device-backend/nic/src/core/completion_queue.rs",
                functions: &["flush", "store", "push"],
            },
            Source {
                path: "device-backend/nic/src/core/queue.rs",
                copy: "device-backend/nic/src/core/queue.rs",
                functions: &["fetch"],
            },
            Source {
                path: "device-backend/nic/src/core/awake.rs",
                copy: "device-backend/nic/src/core/awake.rs",
                functions: &["fall_asleep"],
            },
            Source {
                path: "device-backend/nic/src/core/completion.rs",
                copy: "device-backend/nic/src/core/completion.rs",
                functions: &["write_back_dirty", "offer_wake"],
            },
        ],
        test: &["test", "-p", "qnic", "--lib"],
        filter: Some("model::"),
        prepare: queues,
    },
    Suite {
        name: "pools",
        title: "Mutants: shared pools",
        sources: &[
            Source {
                path: "abi/shared/src/pool/queue.rs",
                copy: "abi/shared/src/pool/queue.rs",
                functions: &[],
            },
            Source {
                path: "abi/shared/src/pool/driver.rs",
                copy: "abi/shared/src/pool/driver.rs",
                functions: &["work", "rest", "must_wake"],
            },
            Source {
                path: "abi/shared/src/pool/process.rs",
                copy: "abi/shared/src/pool/process.rs",
                functions: &["must_kick", "want", "awake"],
            },
        ],
        test: &["test", "-p", "qnic-shared", "--lib"],
        filter: Some("model::"),
        prepare: pools,
    },
    Suite {
        name: "ring",
        title: "Mutants: rings between device processes",
        sources: &[Source {
            path: "device-backend/links/src/shm/ring.rs",
            copy: "links/src/shm/ring.rs",
            functions: &[],
        }],
        test: &["test", "-p", "qnic-links", "--lib"],
        filter: Some("model::"),
        prepare: ring,
    },
];

fn root() -> Result<String> {
    let root = checkout().canonicalize().context("find the checkout")?;
    let root = root.to_str().context("the checkout's path is not UTF-8")?;
    Ok(root.to_owned())
}

fn manifest(name: &str, rest: &str) -> Result<String> {
    let root = root()?;
    Ok(format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
         [dependencies]\nqnic-abi = {{ path = \"{root}/abi\" }}\n{rest}"
    ))
}

/// A workspace of these members.
fn workspace(scratch: &Scratch, members: &str) -> Result<()> {
    scratch.write(
        "Cargo.toml",
        &format!(
            "[workspace]\nresolver = \"2\"\nmembers = [{members}]\n\
             [profile.dev]\nopt-level = 1\n"
        ),
    )?;
    let lock = fs::read_to_string(checkout().join("Cargo.lock")).context("read Cargo.lock")?;
    scratch.write("Cargo.lock", &lock)
}

fn page_table(scratch: &Scratch) -> Result<()> {
    workspace(scratch, "\"driver\", \"nic\"")?;
    scratch.write("nic/Cargo.toml", &manifest("qnic-nic", "")?)?;
    let tests = format!(
        "[dev-dependencies]\nloom = \"0.7\"\nqnic-nic = {{ path = \"../nic\" }}\n\
         [[test]]\nname = \"page_lock\"\n\
         path = \"{}/guest-driver/driver/tests/page_lock/main.rs\"\n",
        root()?
    );
    scratch.write("driver/Cargo.toml", &manifest("qnic-driver", &tests)?)?;
    scratch.write("nic/src/lib.rs", "pub mod page_table;\n")?;
    scratch.write("driver/src/lib.rs", "pub mod shadow;\n")
}

/// A copy of the checkout in which the library's tests need the NIC, not the device
/// process.
fn queues(scratch: &Scratch) -> Result<()> {
    const UNUSED: [&str; 2] = [
        "qnic-device.workspace = true\n",
        "qnic-links.workspace = true\n",
    ];
    scratch.copy_checkout()?;
    let mut manifest = scratch.read("guest-lib/Cargo.toml")?;
    for line in UNUSED {
        ensure!(manifest.contains(line), "guest-lib has no line {line:?}");
        manifest = manifest.replace(line, "");
    }
    scratch.write("guest-lib/Cargo.toml", &manifest)
}

fn pools(scratch: &Scratch) -> Result<()> {
    workspace(scratch, "\"abi/shared\"")?;
    let tests = "[dev-dependencies]\nloom = \"0.7\"\n\
                 proptest = { version = \"1\", default-features = false, features = [\"std\"] }\n";
    scratch.write("abi/shared/Cargo.toml", &manifest("qnic-shared", tests)?)?;
    let root = "#![no_std]\n#[cfg(test)]\nextern crate std;\npub mod pool;\n";
    scratch.write("abi/shared/src/lib.rs", root)?;
    for file in ["mod", "frame", "held", "share", "model", "tests"] {
        let path = format!("abi/shared/src/pool/{file}.rs");
        let text = fs::read_to_string(checkout().join(&path));
        scratch.write(&path, &text.with_context(|| format!("read {path}"))?)?;
    }
    Ok(())
}

fn ring(scratch: &Scratch) -> Result<()> {
    workspace(scratch, "\"links\"")?;
    // The ring's own tests take their memory from the NIC's, and the channels their names.
    let rest = format!(
        "thiserror = \"2\"\nzerocopy = {{ version = \"0.8\", features = [\"derive\"] }}\n\
         qnic-nic = {{ path = \"{}/device-backend/nic\", features = [\"testing\"] }}\n\
         [dev-dependencies]\nloom = \"0.7\"\n\
         proptest = {{ version = \"1\", default-features = false, features = [\"std\"] }}\n",
        root()?
    );
    scratch.write("links/Cargo.toml", &manifest("qnic-links", &rest)?)?;
    let source = format!("{}/device-backend/links/src", root()?);
    // The models need no codec, only a limit on the length of a record.
    scratch.write(
        "links/src/lib.rs",
        &format!(
            "#![allow(dead_code)]\nmod codec {{\n    pub const MAX_FRAME: usize = 4200;\n}}\n\
             mod shm;\n#[path = \"{source}/turns.rs\"]\nmod turns;\n"
        ),
    )?;
    scratch.write(
        "links/src/shm/mod.rs",
        &format!(
            "#[path = \"{source}/shm/channels.rs\"]\nmod channels;\n#[cfg(test)]\n\
             #[path = \"{source}/shm/model.rs\"]\nmod model;\nmod ring;\n"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant;

    #[test]
    fn every_source_and_every_function_that_is_named_has_mutants() {
        for source in SUITES.iter().flat_map(|suite| suite.sources) {
            let mutants = mutant::all(&source.read().unwrap()).unwrap();
            let has = |name: &str| mutants.iter().any(|mutant| mutant.function == name);
            for function in source.functions {
                assert!(has(function), "{}: {function}", source.path);
            }
            assert!(!mutants.is_empty(), "{}", source.path);
        }
    }
}
