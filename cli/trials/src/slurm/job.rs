//! What a job runs, and its directory, which all its hosts see.
//!
//! ```text
//!   <cache>/jobs/exec-pair-x7Kq2m/   mode 0700; removed with the job
//!     job.json                       [`Job`]
//!     host0.key, host1.key           private keys, mode 0600
//!     programs/                      qnic, device process, programs of nodes, as they were when the job began
//!     lock                           locked by the command that made it, for "exec"
//!     id, hosts.json                 for "up": the number of the job; where its hosts are, once all are ready
//!     log                            for "up": what the supervisor says
//! ```

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ClusterSpec, HostSpec};
use qnic_config::plan::{PrivateKey, PublicKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::slurm::plan::Plan;

/// Names of directories begin so, by what made them.
const OF_EXEC: &str = "exec-";
const OF_UP: &str = "up-";

/// What a job runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The name of the cluster.
    pub name: String,
    /// The cluster file, with the settings applied.
    pub cluster: String,
    /// Its nodes are guests, and not processes of their hosts.
    pub guests: bool,
    /// Time for each guest to get ready.
    pub boot_timeout: Duration,
    /// What each host runs.
    pub parts: Vec<Part>,
    /// What for.
    pub work: Work,
}

/// What one host runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Names of its nodes.
    pub nodes: Vec<String>,
    /// By which key the others know it.
    pub public_key: PublicKey,
}

/// What a cluster is booted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// To be there until the job ends.
    Hold,
    /// To run a program.
    Program {
        /// The program and its arguments.
        words: Vec<OsString>,
        /// The node that runs it; `None`: all.
        on: Option<String>,
        /// Time for it.
        timeout: Duration,
        /// Where each host keeps what it leaves, in a directory of its own.
        artifacts: Option<PathBuf>,
        /// Whether to keep what runs over the links, too.
        capture: bool,
        /// Settings beside the cluster file, as `KEY=VALUE`.
        settings: Vec<String>,
    },
}

impl Job {
    /// The cluster without hosts.
    ///
    /// # Errors
    /// Returns an error if the file is none.
    pub(crate) fn spec(&self) -> Result<ClusterSpec> {
        Ok(ClusterSpec::parse(&self.cluster, Path::new("job.toml"))?)
    }
}

/// The hosts of a cluster file for `parts`, which listen at `addresses`.
pub(crate) fn hosts(
    dir: &JobDir,
    parts: &[Part],
    addresses: &[std::net::SocketAddr],
) -> Vec<HostSpec> {
    let parts = parts.iter().zip(addresses).enumerate();
    let host = |(index, (part, address)): (usize, (&Part, &std::net::SocketAddr))| HostSpec {
        name: host_name(index),
        address: *address,
        public_key: part.public_key,
        private_key: dir.key(index),
        nodes: part.nodes.clone(),
    };
    parts.map(host).collect()
}

/// What a host is called in the cluster file.
pub(crate) fn host_name(index: usize) -> String {
    format!("host{index}")
}

/// The directory of a job.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    /// Keeps others from removing it.
    _lock: Option<File>,
}

impl JobDir {
    /// The directory that another program has made.
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            _lock: None,
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its programs are.
    pub fn programs(&self) -> PathBuf {
        self.path.join("programs")
    }

    /// This command, as all hosts run it.
    pub fn command(&self) -> PathBuf {
        self.programs().join("qnic")
    }

    /// What the supervisor says.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(crate) fn key(&self, host: usize) -> PathBuf {
        self.path.join(format!("host{host}.key"))
    }

    /// Makes a key pair for each part of `plan`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be made.
    pub fn make_keys(&self, plan: &Plan) -> Result<Vec<Part>> {
        let parts = plan.parts().into_iter().enumerate();
        let part = |(host, nodes)| {
            let (key, file) = (PrivateKey::generate()?, self.key(host));
            key.write_new(&file)
                .with_context(|| file.display().to_string())?;
            let public_key = key.public();
            Ok(Part { nodes, public_key })
        };
        parts.map(part).collect()
    }

    /// Puts `programs` there, and this one as `qnic`.
    ///
    /// # Errors
    /// Returns an error if one cannot be copied.
    pub fn keep_programs(&self, programs: &[PathBuf]) -> Result<()> {
        let own = std::env::current_exe().context("find this program")?;
        put(&own, &self.command())?;
        for program in programs {
            let name = program.file_name().context("a program has no name")?;
            put(program, &self.programs().join(name))?;
        }
        Ok(())
    }

    /// Writes what it runs, checked as far as that goes without addresses.
    ///
    /// # Errors
    /// [`qnic_cluster::Error::Config`] for a cluster that cannot be on several hosts.
    pub fn write(&self, job: &Job) -> Result<()> {
        if job.parts.len() > 1 {
            let mut spec = job.spec()?;
            let any = (1..).map(|port| ([127, 0, 0, 1], port).into());
            let any: Vec<_> = any.take(job.parts.len()).collect();
            let network = spec.network.get_or_insert_default();
            network.hosts = hosts(self, &job.parts, &any);
            spec.validate()?;
        }
        self.put_json("job.json", job)
    }

    /// What it runs.
    ///
    /// # Errors
    /// Says what cannot be read.
    pub fn read(&self) -> Result<Job> {
        let there = self.get_json("job.json")?;
        there.with_context(|| format!("{} has no job", self.path.display()))
    }

    /// Notes the number of the job.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn set_id(&self, id: u32) -> Result<()> {
        self.put_json("id", &id)
    }

    /// The number of the job, once it is known.
    ///
    /// # Errors
    /// Says what cannot be read.
    pub fn id(&self) -> Result<Option<u32>> {
        self.get_json("id")
    }

    /// Notes that all are ready, and where: names of hosts as Slurm has them, in the order of the parts.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn set_ready(&self, hosts: &[String]) -> Result<()> {
        self.put_json("hosts.json", &hosts)
    }

    /// Where the hosts are, once all are ready.
    ///
    /// # Errors
    /// Says what cannot be read.
    pub fn ready(&self) -> Result<Option<Vec<String>>> {
        self.get_json("hosts.json")
    }

    fn put_json<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        let (file, half) = (self.path.join(name), self.path.join(format!("{name}.new")));
        let text = serde_json::to_vec(value)?;
        let written = fs::write(&half, text).and_then(|()| fs::rename(&half, &file));
        written.with_context(|| format!("write {}", file.display()))
    }

    fn get_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let file = self.path.join(name);
        let read = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("read {}", file.display()))?,
        };
        let value = serde_json::from_slice(&read);
        value.map(Some).with_context(|| file.display().to_string())
    }

    /// Removes it.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.path).with_context(|| format!("remove {}", self.path.display()))
    }
}

/// Links `from` to `to`, or copies it to another file system.
fn put(from: &Path, to: &Path) -> Result<()> {
    let linked = fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop));
    linked.with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// The directories of all jobs of a user.
#[derive(Debug)]
pub struct Jobs {
    root: PathBuf,
}

impl Jobs {
    /// Those in `cache`, the cache of images, which all hosts see.
    pub fn in_cache(cache: &Path) -> Self {
        Self {
            root: cache.join("jobs"),
        }
    }

    /// Makes a directory for a job that ends with this process. What such processes have left that were killed
    /// is removed first.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn create_for_exec(&self, name: &str) -> Result<JobDir> {
        self.sweep()?;
        let number = std::process::id();
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let path = self.root.join(format!("{OF_EXEC}{name}-{host}-{number}"));
        let dir = self.make(&path)?;
        let lock = File::create_new(path.join("lock")).context("make a lock")?;
        lock.lock().context("lock the directory of the job")?;
        Ok(JobDir {
            _lock: Some(lock),
            ..dir
        })
    }

    /// Makes the directory of the cluster `name`, which stays.
    ///
    /// # Errors
    /// Returns an error if there is one.
    pub fn create_for_up(&self, name: &str) -> Result<JobDir> {
        let path = self.root.join(format!("{OF_UP}{name}"));
        let is_there = path.exists();
        ensure!(
            !is_there,
            "there is a cluster \"{name}\" on Slurm already: end it with \"cargo qnic down {name}\""
        );
        self.make(&path)
    }

    fn make(&self, path: &Path) -> Result<JobDir> {
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        let made = fs::create_dir_all(&self.root).and_then(|()| private(path));
        let made = made.and_then(|()| private(&path.join("programs")));
        made.with_context(|| format!("make {}", path.display()))?;
        Ok(JobDir::open(path))
    }

    /// Names of the clusters that "up" has started.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.directories(OF_UP).map(|(name, _)| name).collect();
        names.sort();
        names
    }

    /// The directory of a cluster that "up" has started.
    pub fn find(&self, name: &str) -> Option<JobDir> {
        let mut all = self.directories(OF_UP);
        Some(JobDir::open(&all.find(|(found, _)| found == name)?.1))
    }

    /// Removes what "exec" has left where it was killed.
    fn sweep(&self) -> Result<()> {
        for (_, path) in self.directories(OF_EXEC) {
            let lock = match File::open(path.join("lock")) {
                Ok(lock) => lock,
                // It is being made or removed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error).context(path.display().to_string()),
            };
            if lock.try_lock().is_ok() {
                JobDir::open(&path).remove()?;
            }
        }
        Ok(())
    }

    fn directories(&self, begin: &'static str) -> impl Iterator<Item = (String, PathBuf)> {
        let entries: io::Result<Vec<_>> = fs::read_dir(&self.root).and_then(Iterator::collect);
        let entries = entries.unwrap_or_default().into_iter();
        entries.filter_map(move |entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_prefix(begin)?.to_owned(), entry.path()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::Capacity;
    use qnic_cluster::NodeSpec;
    use std::os::unix::fs::PermissionsExt;

    fn job(dir: &JobDir, spec: &ClusterSpec) -> Job {
        let plan = Plan::new(spec, false, Some(2), Capacity::default()).unwrap();
        Job {
            name: spec.name.clone(),
            cluster: spec.to_toml().unwrap(),
            guests: false,
            boot_timeout: Duration::from_secs(1),
            parts: dir.make_keys(&plan).unwrap(),
            work: Work::Hold,
        }
    }

    #[test]
    fn keys_are_in_files_that_only_their_user_reads() {
        let cache = tempfile::tempdir().unwrap();
        let jobs = Jobs::in_cache(cache.path());
        let dir = jobs.create_for_up("pair").unwrap();
        let two = ClusterSpec::new("pair").with(NodeSpec::new("a"));
        let two = two.with(NodeSpec::new("b"));
        let job = job(&dir, &two);
        dir.write(&job).unwrap();
        assert_eq!(dir.read().unwrap(), job);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(dir.path()), mode(&dir.key(1))), (0o700, 0o600));
        let text = fs::read_to_string(dir.path().join("job.json")).unwrap();
        let private = fs::read_to_string(dir.key(0)).unwrap();
        assert!(!text.contains(private.trim()));
        assert_eq!(jobs.names(), ["pair"]);
        let again = jobs.create_for_up("pair").unwrap_err().to_string();
        assert!(again.contains("cargo qnic down pair"), "{again}");
    }

    #[test]
    fn a_cluster_that_cannot_be_on_several_hosts_is_refused() {
        let cache = tempfile::tempdir().unwrap();
        let dir = Jobs::in_cache(cache.path()).create_for_up("pair").unwrap();
        let mut two = ClusterSpec::new("pair").with(NodeSpec::new("a"));
        two = two.with(NodeSpec::new("b"));
        two.network = Some(qnic_cluster::NetworkSpec::lossless());
        let refused = dir.write(&job(&dir, &two)).unwrap_err().to_string();
        assert!(refused.contains("lossless"), "{refused}");
    }

    #[test]
    fn what_a_killed_command_has_left_is_removed() {
        let cache = tempfile::tempdir().unwrap();
        let jobs = Jobs::in_cache(cache.path());
        let (ours, left) = (
            jobs.create_for_exec("a").unwrap(),
            jobs.root.join("exec-b-h-1"),
        );
        fs::create_dir(&left).unwrap();
        File::create(left.join("lock")).unwrap();
        jobs.sweep().unwrap();
        assert!(ours.path().exists() && !left.exists());
    }
}
