//! What a run was made on.

use std::path::Path;
use std::process::{Command, Stdio};

use procfs::{CpuInfo, Current, Meminfo};
use qnic_cluster::{decide, repository, AccelChoice};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine; what is not known is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Machine {
    /// Cores that the run may use.
    pub(super) cores: usize,
    /// The model of its processor.
    pub(super) model: String,
    /// It is a virtual machine itself.
    pub(super) is_virtual: bool,
    /// Its memory, in MiB.
    pub(super) memory_mib: u64,
    /// The release of its kernel.
    pub(super) kernel: String,
    /// What runs guests: `kvm` or `tcg`.
    pub(super) accelerator: String,
}

/// The sources that were measured; what is not known is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Sources {
    /// The commit.
    pub(super) commit: String,
    /// They differ from that commit.
    pub(super) modified: bool,
}

impl Machine {
    pub(super) fn of_this_run() -> Self {
        let cpu = CpuInfo::current().ok();
        let field = |name: &str| cpu.as_ref()?.get_field(0, name).map(str::to_owned);
        let flags = field("flags").unwrap_or_default();
        let memory = Meminfo::current().map_or(0, |info| info.mem_total);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        let accelerator = decide(AccelChoice::Auto).map(|it| it.accel.to_string());
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            model: field("model name").unwrap_or_default(),
            is_virtual: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            memory_mib: memory >> 20,
            kernel: kernel.unwrap_or_default().trim().to_owned(),
            accelerator: accelerator.unwrap_or_default(),
        }
    }

    /// In what it is another machine than `other`, as far as that moves figures; empty for the
    /// same. Another kernel is none: a comparison may be about what it costs.
    pub(super) fn differs_from(&self, other: &Machine) -> Vec<String> {
        let facts = |machine: &Machine| {
            [
                ("cores", machine.cores.to_string()),
                ("processor", machine.model.clone()),
                ("virtual", machine.is_virtual.to_string()),
                ("accelerator", machine.accelerator.clone()),
            ]
        };
        let pairs = facts(self).into_iter().zip(facts(other));
        let different = pairs.filter(|(one, other)| one != other);
        different
            .map(|((what, one), (_, other))| format!("{what}: {one:?} and {other:?}"))
            .collect()
    }
}

impl Sources {
    pub(super) fn of_this_run() -> Self {
        let root = repository();
        let git = |words: &[&str]| said_by_git(root.as_deref()?, words);
        let changes = git(&["status", "--porcelain", "--untracked-files=no"]);
        Sources {
            commit: git(&["rev-parse", "HEAD"]).unwrap_or_default(),
            modified: changes.is_some_and(|changes| !changes.is_empty()),
        }
    }
}

/// What git says in a directory; none if it is no checkout, or there is no git.
fn said_by_git(root: &Path, words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(words).stderr(Stdio::null());
    let output = git.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine.
    pub(in crate::bench) fn machine() -> Machine {
        Machine {
            cores: 2,
            model: "A Processor".into(),
            is_virtual: false,
            memory_mib: 1024,
            kernel: "6.1".into(),
            accelerator: "tcg".into(),
        }
    }

    #[test]
    fn this_machine_is_known_and_the_same_as_itself() {
        let this = Machine::of_this_run();
        assert!(this.cores > 0 && this.memory_mib > 0);
        assert!(!this.kernel.is_empty() && !this.accelerator.is_empty());
        assert_eq!(this.differs_from(&this), [""; 0]);
        let mut other = this.clone();
        other.kernel.push('x');
        assert_eq!(this.differs_from(&other), [""; 0]);
        other.cores += 1;
        let different = this.differs_from(&other).join(", ");
        assert!(different.starts_with("cores: "), "{different}");
    }
}
