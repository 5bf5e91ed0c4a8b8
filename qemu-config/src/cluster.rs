//! A running cluster.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use crate::accel::Accel;
use qnic_config::plan::ImpairmentChange;
use serde_json::{json, Value};

use crate::boot::{boot, nodes_of};
use crate::boot_options::BootOptions;
use crate::capture::{self, CaptureOptions};
use crate::device;
use crate::dirs::ClusterDir;
use crate::manifest::Manifest;
use crate::mpi::Mpi;
use crate::node::Node;
use crate::owned::Owned;
use crate::process::ProcessId;
use crate::state::Runtime;
use crate::{Cancel, ClusterSpec, Error, Links, Result, Step, StepChange};

/// Faults of a queue pair of verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuePairFaults {
    /// So many messages of its peer find no receive, although one may be posted.
    pub not_ready: u32,
    /// So many writes, reads and atomic operations of its peer are denied.
    pub denied: u32,
    /// It fails at once.
    pub fails: bool,
}

/// A running cluster. If it was booted attached, it ends when this value is dropped, or when the
/// process ends in any way.
pub struct Cluster {
    spec: ClusterSpec,
    pub(crate) dir: ClusterDir,
    pub(crate) manifest: Manifest,
    nodes: Vec<Node>,
    owned: Option<Owned>,
}

impl Cluster {
    /// Boots `spec` and waits until every guest is ready.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Host`] and [`Error::InUse`] before anything is
    /// started; [`Error::Images`] and [`Error::Build`] while provisioning;
    /// [`Error::Failed`], [`Error::Timeout`] and [`Error::Interrupted`] after
    /// everything that was started has been ended again.
    pub fn boot(spec: &ClusterSpec, options: &BootOptions) -> Result<Self> {
        let spec = match options.host {
            // They are devices of guests.
            true => spec.without_ethernet(),
            false => spec.clone(),
        };
        let (dir, nodes, owned) = boot(&spec, options)?;
        let manifest = read_manifest(&spec.name, &dir)?;
        Ok(Self {
            spec,
            dir,
            manifest,
            nodes,
            owned,
        })
    }

    /// The running cluster `name`. Its waits end when `cancel` is pulled.
    ///
    /// # Errors
    /// [`Error::NoSuchCluster`], [`Error::OtherVersion`], or what is wrong with its files.
    pub fn open(runtime: &Runtime, name: &str, cancel: Option<&Cancel>) -> Result<Self> {
        let dir = runtime.existing(name)?;
        let manifest = read_manifest(name, &dir)?;
        manifest.check_version(name)?;
        let spec = ClusterSpec::load_booted(&dir.cluster_file())?;
        Ok(Self {
            nodes: nodes_of(&spec, &dir, manifest.host.as_ref(), cancel),
            spec,
            dir,
            manifest,
            owned: None,
        })
    }

    /// The cluster `name`. Without a name, the only detached cluster, or else the only cluster.
    ///
    /// # Errors
    /// As [`Self::open`]. Without a name, [`Error::NoCluster`] if there is none, and
    /// [`Error::WhichCluster`] if there are several.
    pub fn find(runtime: &Runtime, name: Option<&str>, cancel: Option<&Cancel>) -> Result<Self> {
        if let Some(name) = name {
            return Self::open(runtime, name, cancel);
        }
        let mut known = runtime.detached_names();
        if known.is_empty() {
            known = runtime.names();
        }
        match &known[..] {
            [only] => Self::open(runtime, only, cancel),
            [] => Err(Error::NoCluster),
            _ => Err(Error::WhichCluster { known }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What runs its guests.
    pub fn accel(&self) -> Accel {
        self.manifest.accel
    }

    /// What it was made from.
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// Its nodes, in the order of the cluster file; that is the order of the numbers of their
    /// first NICs.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node called `name`.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`].
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes.iter().find(|node| node.name() == name);
        found.ok_or_else(|| self.no_such_node(name))
    }

    /// The node called `name`, which has a guest.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`]; [`Error::NoGuest`] in host mode.
    pub fn guest(&self, name: &str) -> Result<&Node> {
        let node = self.node(name)?;
        node.check_guest()?;
        Ok(node)
    }

    /// What starts MPI programs on its guests.
    ///
    /// # Errors
    /// [`Error::Host`] if its guests have no MPI.
    pub fn mpi(&self) -> Result<Mpi<'_>> {
        if !self.spec().mpi || self.nodes().iter().any(|node| !node.is_guest()) {
            return Err(Error::Host(format!(
                "cluster {}: there is no MPI in its guests: write mpi = true into the cluster file, and boot it \
                 without --host (examples/mpi.toml is such a file)",
                self.name()
            )));
        }
        Ok(Mpi::new(self.nodes()))
    }

    /// The number of a NIC on its network: `NODE` is the first of a node, `NODE.NIC` the one with
    /// that name.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`].
    pub fn number(&self, nic: &str) -> Result<u16> {
        let number = self.spec.node_number(nic);
        number.ok_or_else(|| self.no_such_node(nic))
    }

    /// The number of the NIC `to` for a program that uses the NIC `from`.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`]; one has no NIC, or the two are on different networks.
    pub fn number_for(&self, from: &str, to: &str) -> Result<u16> {
        self.number(from)?;
        let number = self.number(to)?;
        let nodes = self.nodes.iter().filter(|node| !node.spec().nic);
        let mut without = nodes.filter(|node| [from, to].contains(&node.name()));
        if let Some(node) = without.next() {
            return Err(self.no_such_nic(node.name()));
        }
        self.network_with(&Links::Between(from.to_owned(), to.to_owned()))?;
        Ok(number)
    }

    fn no_such_nic(&self, name: &str) -> Error {
        match self.node(name) {
            Ok(node) => Error::guest(node.name(), "it has no NIC"),
            Err(unknown) => unknown,
        }
    }

    fn no_such_node(&self, name: &str) -> Error {
        let nodes = self.nodes.iter().map(|node| node.name().to_owned());
        let nics = self.spec.nics().into_iter().map(|nic| nic.address());
        let known = nodes.chain(nics.filter(|nic| nic.contains('.')));
        Error::NoSuchNode {
            cluster: self.spec.name.clone(),
            name: name.to_owned(),
            known: known.collect(),
        }
    }

    /// The first of its device processes, which may have ended; `None` without NICs.
    pub fn device(&self) -> Option<ProcessId> {
        Some(self.devices().into_iter().next()?.1)
    }

    /// Its device processes, which may have ended, with their names.
    pub fn devices(&self) -> Vec<(String, ProcessId)> {
        let processes = self.spec.device_processes().into_iter();
        let started = processes.filter_map(|process| {
            let id = ProcessId::load(&self.dir.device(process).pid())?;
            Some((device::name(process), id))
        });
        started.collect()
    }

    /// The control sockets of the device processes of a network: `[network]`, or that of this name.
    pub fn control_sockets(&self, network: Option<&str>) -> Vec<PathBuf> {
        let processes = self.spec.device_processes().into_iter();
        let processes =
            processes.filter(|process| self.spec.network_of_process(*process) == network);
        let sockets = processes.map(|process| self.dir.device(process).control());
        sockets.collect()
    }

    /// The statistics of its device processes: NICs and links of all of them, everything else of
    /// the first. Device processes that do not answer are named in a list `silent`, if there are
    /// any. NICs and links of a network beside `[network]` have its name as `network`.
    ///
    /// # Errors
    /// [`Error::Failed`] if none answers.
    pub fn device_stats(&self) -> Result<Value> {
        let request = json!({ "cmd": "stats" });
        let (mut all, mut silent) = (Value::Null, Vec::new());
        for process in self.spec.device_processes() {
            match self.ask(process, &request) {
                Ok(mut stats) => {
                    device::name_network(&mut stats, self.spec.network_of_process(process));
                    device::add_stats(&mut all, stats);
                }
                Err(error) => silent.push((device::name(process), error)),
            }
        }
        if all.is_null() {
            let first = silent.into_iter().next();
            return first.map_or(Ok(all), |(_, error)| Err(error));
        }
        if !silent.is_empty() {
            all["silent"] = silent.into_iter().map(|(name, _)| name).collect();
        }
        Ok(all)
    }

    /// The statistics of a NIC: an object with its name, state, counters and budgets.
    ///
    /// # Errors
    /// No such node; it has no NIC; the device process does not answer.
    pub fn nic_stats(&self, nic: &str) -> Result<Value> {
        let address = self.spec.nic_at(nic).map(|nic| nic.address());
        let address = address.ok_or_else(|| self.no_such_nic(nic))?;
        let mut stats = self.ask(self.spec.process_of(nic), &json!({ "cmd": "stats" }))?;
        let mut nics = stats["nics"].as_array_mut().into_iter().flatten();
        let found = nics.find(|nic| nic["name"] == *address);
        let unknown = || device::failed(format!("knows no NIC {address}"));
        found.map(Value::take).ok_or_else(unknown)
    }

    /// What a NIC holds: an object with `columns`, `rows` and `truncated`. `table` is
    /// map, names, groups, queues or queue_pairs.
    ///
    /// # Errors
    /// No such node; it has no NIC; the device process does not answer.
    pub fn nic_table(&self, nic: &str, table: &str) -> Result<Value> {
        let request = json!({ "cmd": "table", "node": self.number(nic)?, "table": table });
        self.ask(self.spec.process_of(nic), &request)
    }

    /// Injects faults into a queue pair of verbs, beside those that it still has.
    ///
    /// # Errors
    /// No such node; it has no NIC; its NIC has no such queue pair; the device process does not answer.
    pub fn inject(&self, nic: &str, queue_pair: u32, faults: &QueuePairFaults) -> Result<()> {
        let request = json!({
            "cmd": "fault",
            "node": self.number(nic)?,
            "queue_pair": queue_pair,
            "not_ready": faults.not_ready,
            "denied": faults.denied,
            "fails": faults.fails,
        });
        self.ask(self.spec.process_of(nic), &request).map(drop)
    }

    /// Changes the present impairments of links; without a `change`, removes them. Returns how many
    /// directions of links were changed.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], or [`Error::Failed`] if there is no such link.
    pub fn set_links(&self, links: &Links, change: Option<&ImpairmentChange>) -> Result<u64> {
        let named = self.by_number(links)?;
        let request = match change {
            Some(change) => json!({ "cmd": "net_set", "links": named, "change": change }),
            None => json!({ "cmd": "net_clear", "links": named }),
        };
        self.change_links(links, &request)
    }

    /// Gives links the impairments of the cluster file again. Returns how many directions were
    /// changed.
    ///
    /// # Errors
    /// As [`Self::set_links`].
    pub fn restore_links(&self, links: &Links) -> Result<u64> {
        let request = json!({ "cmd": "net_restore", "links": self.by_number(links)? });
        self.change_links(links, &request)
    }

    /// Applies a step of a schedule to its links, with the seed of the step. Returns how many
    /// directions were changed.
    ///
    /// # Errors
    /// As [`Self::set_links`].
    pub fn apply(&self, step: &Step) -> Result<u64> {
        let (links, seed) = (self.by_number(&step.links)?, step.seed);
        let request = match &step.change {
            StepChange::Set(change) => {
                json!({ "cmd": "net_set", "links": links, "change": change, "seed": seed })
            }
            StepChange::Heal => json!({ "cmd": "net_restore", "links": links, "seed": seed }),
        };
        self.change_links(&step.links, &request)
    }

    fn change_links(&self, links: &Links, request: &Value) -> Result<u64> {
        // A device process knows only the links that its own frames take, so some may refuse.
        let (mut changed, mut refused) = (0, None);
        let network = self.network_with(links)?;
        for process in self.spec.device_processes() {
            let of = self.spec.network_of_process(process);
            if network.is_some_and(|network| network != of) {
                continue;
            }
            match self.ask(process, request) {
                Ok(answer) => changed += answer["changed"].as_u64().unwrap_or(0),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            // `all` names links of each process.
            Some(error) if changed == 0 || *links == Links::All => Err(error),
            _ => Ok(changed),
        }
    }

    /// Writes the frames on links to `out`, as pcapng, until `cancel` is pulled or the capture ends
    /// by itself. Returns the number of bytes. If there are several device processes, it asks the
    /// one with the first node of the link.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], [`Error::Failed`] if there is no such link, or if there are
    /// several device processes and no node is named, and [`Error::Output`].
    pub fn capture(
        &self,
        links: &Links,
        options: &CaptureOptions,
        cancel: &Cancel,
        out: &mut dyn Write,
    ) -> Result<u64> {
        let request = options.request(&self.by_number(links)?);
        self.network_with(links)?;
        let process = match links {
            Links::All => match self.spec.device_processes()[..] {
                [] | [_] => None,
                _ => {
                    let why = "there are several: name a node or a link, each captures its own";
                    return Err(device::failed(why.to_owned()));
                }
            },
            Links::At(node) | Links::Between(node, _) | Links::OneWay(node, _) => {
                self.spec.process_of(node)
            }
        };
        let control = self.dir.device(process).control();
        capture::copy(&control, &request, cancel, out)
    }

    /// The network that has these links; `None`: all networks.
    fn network_with(&self, links: &Links) -> Result<Option<Option<&str>>> {
        let network = |name: &str| {
            let nic = self.spec.nic_at(name);
            // A node that runs elsewhere is on [network].
            nic.and_then(|nic| nic.network)
        };
        match links {
            Links::All => Ok(None),
            Links::At(nic) => Ok(Some(network(nic))),
            Links::Between(a, b) | Links::OneWay(a, b) if network(a) == network(b) => {
                Ok(Some(network(a)))
            }
            Links::Between(a, b) | Links::OneWay(a, b) => Err(device::failed(format!(
                "{a} and {b} are on different networks, which no link joins"
            ))),
        }
    }

    /// Links in the words of the device process.
    fn by_number(&self, links: &Links) -> Result<Value> {
        let number = |name: &str| self.number(name);
        Ok(match links {
            Links::All => json!("all"),
            Links::At(node) => json!({ "at": number(node)? }),
            Links::Between(a, b) => json!({ "between": [number(a)?, number(b)?] }),
            Links::OneWay(a, b) => json!({ "one_way": [number(a)?, number(b)?] }),
        })
    }

    /// Stops the CPUs of a node's guest, as a debugger would. Its NICs go on serving their peers, if a
    /// driver has started them. [Resume](Cluster::resume) the guest before you reset it.
    ///
    /// # Errors
    /// No such node, or it has no guest; the device process or QEMU's monitor does not answer.
    pub fn pause(&self, node: &str) -> Result<()> {
        let guest = self.guest(node)?;
        let nics = self.spec.nics().into_iter();
        for nic in nics.filter(|nic| nic.node.name == node && nic.node.nic) {
            let request = json!({ "cmd": "expect_pause", "node": nic.number });
            // A NIC that does not run needs no announcement.
            self.ask(self.spec.process_of(&nic.address()), &request)?;
        }
        guest.stop_cpus()
    }

    /// Lets the CPUs of a node's guest go on.
    ///
    /// # Errors
    /// As [`Cluster::pause`].
    pub fn resume(&self, node: &str) -> Result<()> {
        self.guest(node)?.continue_cpus()
    }

    fn ask(&self, process: Option<&str>, request: &Value) -> Result<Value> {
        let answer = device::ask(&self.dir.device(process).control(), request);
        answer.map_err(|error| match error {
            Error::Failed { what, log, .. } => Error::Failed {
                subject: device::name(process),
                what,
                log,
            },
            other => other,
        })
    }

    /// The logs of its device processes, one after the other.
    pub fn device_log(&self) -> String {
        let processes = self.spec.device_processes().into_iter();
        let logs = processes.map(|process| fs::read(self.dir.device(process).log()));
        let logs = logs.map(|log| String::from_utf8_lossy(&log.unwrap_or_default()).into_owned());
        logs.collect()
    }

    /// The device process that has the NIC of a node, which may have ended; `None` without NICs.
    pub fn device_of(&self, node: &str) -> Option<ProcessId> {
        ProcessId::load(&self.dir.device(self.spec.process_of(node)).pid())
    }

    /// The private key that guests of disk images let in by SSH; `None` without such guests.
    pub fn ssh_key(&self) -> Option<PathBuf> {
        Some(self.dir.ssh_key()).filter(|path| path.exists())
    }

    /// Where the device process of a node logs; `None` without NICs.
    pub fn device_log_path(&self, node: &str) -> Option<PathBuf> {
        let process = self.spec.process_of(node);
        Some(self.dir.device(process).log()).filter(|path| path.exists())
    }

    /// Ends the cluster, if it was booted attached by this process; otherwise see
    /// [`crate::down`]. Dropping does the same and only logs a failure.
    ///
    /// # Errors
    /// As [`crate::down`].
    pub fn end(mut self) -> Result<()> {
        self.owned.as_mut().map_or(Ok(()), Owned::end)
    }
}

fn read_manifest(name: &str, dir: &ClusterDir) -> Result<Manifest> {
    let message =
        format!("cluster {name} was left behind incomplete: remove it with \"qnic down {name}\"");
    dir.read_manifest().ok_or(Error::Host(message))
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
