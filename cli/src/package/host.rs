//! What is installed on the machine that clusters run on.
//!
//! ```text
//! bin/qnic                     a link to the command
//! lib/qnic/                    the command and all that it runs, boots and builds (qnic_images::Installed)
//! share/                       man pages, completions, examples, licences
//! ```

use std::path::Path;

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;
use qnic_cluster::{Program, APP, DEMO, DEVICE, EXEC, LOG_KEEPER, PROVIDER};
use qnic_images::Installed;

use super::debian::Control;
use super::tree::{copy, copy_all, copy_stripped, link, write};
use crate::{name, reference};

/// The command, and the programs that it becomes: linked statically, so that they run anywhere.
const TOOLS: [(&str, &str); 3] = [
    ("qnic-cli", "qnic"),
    ("qnic-watch", "qnic-watch"),
    ("qnic-join", "qnic-join"),
];

/// Programs of clusters, by cargo's name and by that of their file.
const PROGRAMS: [(Program<'static>, &str); 4] = [
    (DEVICE, "qnic-device"),
    (APP, "qnic-app"),
    (EXEC, "qnic-exec"),
    (LOG_KEEPER, "qnic-log-keeper"),
];

/// Documents in the clone.
const DOCUMENTS: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md", "README.md"];

/// The directory of the programs in the tree.
pub(super) fn installed(tree: &Path) -> Installed {
    Installed::at(tree.join("lib/qnic"))
}

/// Fills `tree` with all but the modules. `sources` are those of the module, `command` is that of the tool.
pub(super) fn fill(tree: &Path, sources: &Path, clone: &Path, command: Command) -> Result<()> {
    let installed = installed(tree);
    let paths = qnic_cluster::programs(PROGRAMS.map(|(program, _)| program))?;
    for ((_, name), path) in PROGRAMS.iter().zip(paths) {
        copy_stripped(&path, &installed.program(name))?;
    }
    let tools = TOOLS.map(|(package, name)| Program::bin(package, name).in_profile("tool"));
    for ((_, name), path) in TOOLS.iter().zip(qnic_cluster::programs(tools)?) {
        copy_stripped(&path, &installed.program(name))?;
    }
    // It is a part of the other one.
    link("qnic-app", &installed.program(DEMO.name()))?;
    let provider = qnic_cluster::library(PROVIDER, &[], &|| {})?;
    copy_stripped(&provider, &installed.program("libqnic_fi.so"))?;
    copy_all(sources, &installed.source())?;
    link("../lib/qnic/qnic", &tree.join("bin/qnic"))?;

    let share = tree.join("share");
    let documents = share.join("doc/qnic");
    for document in DOCUMENTS {
        copy(&clone.join(document), &documents.join(document))?;
    }
    copy_all(&clone.join("examples"), &documents.join("examples"))?;
    write(&documents.join("copyright"), COPYRIGHT)?;
    let command = name::installed(command);
    reference::write_pages(&share.join("man/man1"), command.clone())?;
    let completions = reference::completions_of(Shell::Bash, command);
    write(&share.join("bash-completion/completions/qnic"), completions)
}

/// What the package says of itself; it has modules for these kernels.
pub(super) fn control(modules: &[String]) -> Control {
    Control {
        name: "qnic",
        summary: "clusters of virtual machines with system-area NICs in software",
        description: format!(
            "qnic gives QEMU guests a PCIe NIC with on-board memory, user-mode doorbells,\n\
             remote memory access without pinned pages, and links to each other. This package\n\
             has the command \"qnic\", which boots clusters of guests with stock kernels and runs\n\
             programs on them. It needs no root.\n\n\
             QEMU and kernels are taken from Debian's packages when they are first needed.\n\
             Modules are there for {}.",
            modules.join(" and ")
        ),
        depends: "apt, debian-archive-keyring, dpkg, tar, util-linux".to_owned(),
        recommends: "ca-certificates",
        files: Vec::new(),
    }
}

/// Under which terms the parts are.
pub(super) const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: qnic
Source: https://github.com/qnic/qnic

Files: *
Copyright: the contributors of qnic
License: MIT or Apache-2.0
 The texts are in LICENSE-MIT and LICENSE-APACHE, in this directory or in that of the
 module's sources. Crates that the programs are linked with have licences of their own:
 the list of parts (SBOM) that comes with a release names them.

Files: */guest-driver/linux/* */modules/*
Copyright: the contributors of qnic
License: GPL-2.0
 The text is in guest-driver/linux/COPYING of the module's sources.
";
