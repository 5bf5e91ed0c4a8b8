//! The distribution's Slurm and munge on this machine, as they are in their packages, without installing them: for
//! tests of clusters that Slurm places.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::{Error, Result};
use crate::root::{PackageSet, Root, LIBRARIES};

/// Daemons and commands.
const SLURM: PackageSet<'static> = PackageSet {
    kind: "slurm",
    label: "Slurm",
    suite: STABLE,
    names: "munge slurm-client slurmctld slurmd",
    keep: &|name| !NOT_USED.contains(&name),
    // It wants a library that the package does not ask for.
    skip: &["usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix*.so"],
};

/// Packages that concern an installed system.
const NOT_USED: [&str; 5] = ["adduser", "mount", "passwd", "systemd", "ucf"];

/// What runs, and under which name.
const PROGRAMS: [(&str, &str); 10] = [
    ("munged", "usr/sbin/munged"),
    ("slurmctld", "usr/sbin/slurmctld-wlm"),
    ("slurmd", "usr/sbin/slurmd-wlm"),
    ("slurmstepd", "usr/sbin/slurmstepd-wlm"),
    ("sbatch", "usr/bin/sbatch"),
    ("scancel", "usr/bin/scancel"),
    ("scontrol", "usr/bin/scontrol"),
    ("sinfo", "usr/bin/sinfo"),
    ("squeue", "usr/bin/squeue"),
    ("srun", "usr/bin/srun"),
];

/// The library of all programs of Slurm, and its plugins, are there.
const PLUGINS: &str = "slurm-wlm";

/// Slurm's programs, which run as any user.
#[derive(Clone, Debug)]
pub struct Slurm {
    root: Root,
}

impl Slurm {
    pub(crate) fn provision(cx: Context<'_>) -> Result<Self> {
        let root = Root::of_packages(cx, &SLURM, |dir| {
            let missing = PROGRAMS.iter().find(|(_, path)| !dir.join(path).is_file());
            match missing {
                None => Ok(()),
                Some((name, path)) => Err(Error::unexpected(*name, dir.join(path))),
            }
        })?;
        Ok(Slurm { root })
    }

    /// Where its plugins are.
    pub fn plugins(&self) -> PathBuf {
        self.root.dir.join(LIBRARIES).join(PLUGINS)
    }

    /// Writes a script for each program to the directory `dir`, which exists: daemons of Slurm start each other by
    /// path, and each has to run by the loader of its distribution. They read the configuration `conf`.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn write_programs(&self, dir: &Path, conf: &Path) -> Result<()> {
        let libraries = self.root.dir.join(LIBRARIES);
        for (name, path) in PROGRAMS {
            let file = dir.join(name);
            let text = format!(
                "#!/bin/sh\nexport SLURM_CONF={conf:?}\nexec {:?} --library-path {:?}:{:?} --argv0 {file:?} {:?} \"$@\"\n",
                self.root.loader(),
                libraries,
                self.plugins(),
                self.root.dir.join(path),
            );
            fs::write(&file, text)?;
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755))?;
        }
        Ok(())
    }
}
