//! Guests whose NICs are in two device processes: on two hosts, joined by UDP (U6, U10, X7),
//! and on one, joined by shared memory (X7).

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{add_stats, ClusterSpec, OnOff};
use serde_json::{json, Value};

use super::ethernet;
use super::nodes::{kill_device, on_spec};
use super::silent::{a_stuck_kernel_is_given_up, FAULT_TIMEOUT};
use crate::harness::{cases, is_long, Case};
use crate::net::{udp_plan, PORT, SIZES};
use crate::netns::{TwoHosts, ADDRESSES};
use crate::scenario;
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::keys::HostKeys;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Nodes, Running};

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const CASES: &[Case] = cases! { "vm":
    guests_of_two_hosts_over_udp => two_hosts(),
    guests_of_two_device_processes_through_shared_memory => two_processes(),
};

/// Names of the hosts; also those by which their device processes know each other.
const HOSTS: [&str; 2] = ["host0", "host1"];

/// One cluster of four guests, of which each host has booted two.
struct Guests([VmNodes; 2]);

impl Guests {
    /// Boots them, each device process in the network of its host.
    fn boot(hosts: &TwoHosts, directory: &Path) -> Result<Self> {
        let keys = HostKeys::new(directory)?;
        let file = directory.join("hosts.toml");
        let mut text = format!(
            "name = \"hosts\"\nethernet = true\n[network]\npeer_timeout = \"5s\"\nfault_timeout = \"{FAULT_TIMEOUT}\"\n"
        );
        for (host, name) in HOSTS.iter().enumerate() {
            let (address, first) = (ADDRESSES[host], 2 * host);
            let (public, private) = (&keys.public[host], &keys.files[host]);
            text += &format!(
                "[[network.host]]\nname = \"{name}\"\naddress = \"{address}:{PORT}\"\n\
                 public_key = \"{public}\"\nprivate_key = {private:?}\n\
                 nodes = [\"n{first}\", \"n{}\"]\n",
                first + 1
            );
        }
        text += "[[node]]\nname = \"n\"\ncount = 4\n";
        std::fs::write(&file, text).context("write the cluster file")?;
        let boot = |host: usize| {
            let name = HOSTS[host];
            let spec = ClusterSpec::load(&file)?.on_host(name);
            let mut spec = spec.map_err(anyhow::Error::msg)?;
            // Both run on this one machine.
            spec.name = format!("{name}-{}", std::process::id());
            let nodes = VmNodes::boot_behind(&spec, hosts.prefix(host));
            let nodes = nodes.with_context(|| format!("boot {name}"))?;
            anyhow::Ok(nodes.watched())
        };
        Ok(Guests([boot(0)?, boot(1)?]))
    }
}

impl Nodes for Guests {
    fn count(&self) -> usize {
        self.0.iter().map(Nodes::count).sum()
    }

    fn start_on(
        &self,
        node: usize,
        nic: Option<&str>,
        arguments: &str,
    ) -> Result<Box<dyn Running>> {
        let [first, second] = &self.0;
        match node.checked_sub(first.count()) {
            None => first.start_on(node, nic, arguments),
            Some(node) => second.start_on(node, nic, arguments),
        }
    }

    fn device_stats(&self) -> Result<Value> {
        let mut all = Value::Null;
        for host in &self.0 {
            add_stats(&mut all, host.device_stats()?);
        }
        Ok(all)
    }
}

/// Two guests on each of two hosts: the demo runs across; a process that poses as one of them
/// is counted and ignored while all pairs exchange data; a partition heals in time and fails
/// beyond it; the kernel of a guest of the other host gets stuck.
fn two_hosts() -> Result<()> {
    let hosts = TwoHosts::new()?;
    let directory = tempfile::tempdir().context("make a directory for the cluster file")?;
    let guests = Guests::boot(&hosts, directory.path())?;
    scenario::demo_across(&guests, "udp", SIZES, 1 << 20).context("the demo")?;
    ethernet::reach((&guests.0[0], 0, "n0"), (&guests.0[1], 1, "n3")).context("Ethernet")?;
    an_impostor(&guests, &hosts).context("an impostor")?;
    scenario::partition_heals_in_time_and_fails_beyond(&guests, &hosts, 100)
        .context("a partition")?;
    let stuck = (&guests.0[1], 0);
    a_stuck_kernel_is_given_up(&guests, [0, 2], stuck).context("a stuck kernel")?;
    let Guests(clusters) = guests;
    clusters.into_iter().try_for_each(VmNodes::end)
}

/// A process on the second host says that it is that host's device process, but has keys of
/// its own.
fn an_impostor(guests: &Guests, hosts: &TwoHosts) -> Result<()> {
    let directory = tempfile::tempdir().context("make a directory for keys")?;
    let keys = HostKeys::new(directory.path())?;
    let plan = udp_plan(1, PORT + 1, &keys, &keys.public[0], hosts);
    let impostor = HostNodes::start_several(&[plan])?;
    scenario::all_pairs_exchange(guests, 10)?;
    let counted = |carrier: &Value| carrier["rejected"].as_u64() > Some(5);
    let carrier = scenario::until_carrier(guests, 0, "counted", counted)?;
    let process = &carrier["processes"][0];
    ensure!(process["connected"] == true, "{carrier}");
    ensure!(process["malformed"] == 0, "{carrier}");
    let stats = impostor.device_stats()?;
    let answered = &stats["network"]["carriers"][0]["processes"][0];
    ensure!(answered["connected"] == false, "{answered}");
    ensure!(answered["frames_received"] == 0, "{answered}");
    Ok(())
}

/// The cluster of `examples/two-processes.toml`: the demo runs between guests of both
/// device processes; with `--all`, the kernel of one gets stuck; when a device process is killed, the guests of the other go on.
fn two_processes() -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let file = checkout.join("examples/two-processes.toml");
    let mut spec = ClusterSpec::load(&file)?;
    spec.name = format!("processes-{}", std::process::id());
    let network = spec.network.as_mut().context("no section [network]")?;
    network.fault_timeout = Some(FAULT_TIMEOUT.parse()?);
    spec.ethernet = OnOff::on();
    on_spec(&spec, a_device_process_dies)
}

fn a_device_process_dies(nodes: &VmNodes) -> Result<()> {
    scenario::demo_across(nodes, "shm", SIZES, 1 << 20)?;
    ethernet::reach((nodes, 0, "n0"), (nodes, 3, "n3")).context("Ethernet")?;
    if is_long() {
        a_stuck_kernel_is_given_up(nodes, [0, 3], (nodes, 3)).context("a stuck kernel")?;
    }
    let [(left, _), (right, id)] = &nodes.cluster().devices()[..] else {
        bail!("not two device processes: {:?}", nodes.cluster().devices());
    };
    kill_device(id)?;
    // Its nodes have no NIC any more; those of the other do.
    until(LIMIT, || {
        let answers = nodes.cluster().nic_stats("n2").is_ok();
        Ok(answers.then(|| format!("{right} still answers")))
    })?;
    let all = nodes.cluster().device_stats()?;
    ensure!(all["silent"] == json!([right]), "silent: {}", all["silent"]);
    ensure!(all["nics"].as_array().map(Vec::len) == Some(2), "{all}");
    let stats = nodes.cluster().nic_stats("n1");
    ensure!(stats.context(left.clone())?["name"] == "n1");
    scenario::demo_between(nodes, [0, 1], "1,65537", 1 << 20)
}
