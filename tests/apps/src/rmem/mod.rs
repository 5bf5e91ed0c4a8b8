//! `qnic-rmem`: remote memory of a guest (H9; docs/remote-memory.md). A block device in the memory
//! of other nodes, and memory of this node for others. The kernel does it, this tool asks for it.
//! It is `qnic-app` by another name: a guest has what the two share once.
//!
//! Exit status: 0 if it is done, 1 if not, 2 for a wrong command line; 3 of `status` if a volume is not
//! as it should be.

mod prometheus;
mod status;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::{Args, Parser, Subcommand};
use qnic::remote_memory::RemoteMemory;
use qnic::Status;
use qnic_abi::remote_memory::Reason;
use qnic_abi::volume::{
    AttachVolume, DetachVolume, LeaveMemory, ServeMemory, VolumeInfo, ATTACH_THIN, LEAVE_NOW,
    MAX_SERVERS, MAX_VOLUMES,
};
use qnic_abi::{Secret, PAGE_SIZE};
use qnic_config::ByteSize;

const EXAMPLES: &str = "Examples:
  qnic-rmem serve --size 512MiB                           on nodes 1, 2 and 3: give memory
  qnic-rmem attach --size 1GiB --replicas 2 --servers 1,2,3    prints /dev/qnicmem0
  mkswap /dev/qnicmem0 && swapon /dev/qnicmem0            use it
  qnic-rmem status                                        look at it
  swapoff /dev/qnicmem0 && qnic-rmem detach               remove it
  qnic-rmem leave                                         on a server: move its pages to others, end";

#[derive(Parser)]
#[command(
    name = "qnic-rmem",
    version,
    about = "Block devices in the memory of other nodes, and memory for others",
    after_help = EXAMPLES
)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Makes a block device whose blocks are in the memory of other nodes; prints its name
    Attach(AttachOptions),
    /// Removes a block device that is not in use; what was on it is lost
    Detach(DetachOptions),
    /// Gives memory of this node to others, until `leave`
    Serve(ServeOptions),
    /// Moves what others have here to other servers, and takes the memory back
    Leave(LeaveOptions),
    /// Shows volumes, their servers, and the memory that this node gives; exits with 3 if a volume
    /// lacks copies, is full, or was taken back
    Status(StatusOptions),
}

#[derive(Args)]
#[command(after_help = "Example:
  qnic-rmem attach --size 1GiB --replicas 2 --servers 1,2,3")]
struct AttachOptions {
    /// Size of the device, such as 512MiB or 1GiB
    #[arg(long, value_name = "SIZE")]
    size: ByteSize,
    /// On how many servers each block is kept: the loss of all but one loses nothing
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=4))]
    replicas: u16,
    /// Numbers of the nodes that serve, such as 1,2; at least as many as replicas
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true, num_args = 1..=MAX_SERVERS)]
    servers: Vec<u16>,
    /// Key that the servers were given, up to 32 hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = key)]
    key: Option<Secret>,
    /// Longest time of a request in seconds, before it fails [default: 20]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    timeout: Option<u32>,
    /// Attaches though the servers may have less room than the device with its replicas: writes that find
    /// them full fail
    #[arg(long)]
    thin: bool,
}

#[derive(Args)]
#[command(after_help = "Example:
  swapoff /dev/qnicmem0 && qnic-rmem detach /dev/qnicmem0")]
struct DetachOptions {
    /// Which one, as /dev/qnicmem0 or 0; may be left out if there is one only
    #[arg(value_name = "DEVICE", value_parser = device)]
    device: Option<u32>,
}

#[derive(Args)]
#[command(after_help = "Example:
  qnic-rmem serve --size 512MiB --key 0123456789abcdef")]
struct ServeOptions {
    /// Memory for all clients together, such as 512MiB
    #[arg(long, value_name = "SIZE")]
    size: ByteSize,
    /// Memory for one client at most [default: all]
    #[arg(long, value_name = "SIZE")]
    quota: Option<ByteSize>,
    /// A client that is silent for so long, in seconds, loses what it has here [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400))]
    lease: Option<u32>,
    /// Clients at the same time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Key that clients have to present, up to 32 hexadecimal digits [default: none]
    #[arg(long, value_name = "HEX", value_parser = key)]
    key: Option<Secret>,
}

#[derive(Args)]
#[command(after_help = "Example:
  qnic-rmem leave --timeout 120")]
struct LeaveOptions {
    /// Longest time to wait for clients to move their pages, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=86400))]
    timeout: u32,
    /// Ends at once: what clients have here is lost
    #[arg(long)]
    now: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:
  qnic-rmem status
  qnic-rmem status --prometheus > DIRECTORY/qnic_rmem.prom    for node_exporter's textfile collector")]
struct StatusOptions {
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    /// Prints all numbers in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// A key in hexadecimal; shorter ones have zeros in front.
fn key(text: &str) -> Result<Secret, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = digits
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten();
    number
        .map(|number| Secret(number.to_be_bytes()))
        .ok_or_else(|| "a key has 1 to 32 hexadecimal digits".to_owned())
}

/// The number of a device that is named by its path or by that number.
fn device(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("/dev/qnicmem").unwrap_or(text);
    number
        .parse()
        .map_err(|_| "a device is /dev/qnicmemN or N".to_owned())
}

/// So many whole pages.
fn pages(size: ByteSize) -> Result<u64> {
    let bytes = size.0;
    match bytes > 0 && bytes % PAGE_SIZE as u64 == 0 {
        true => Ok(bytes / PAGE_SIZE as u64),
        false => bail!("a size is a multiple of 4KiB, and not zero"),
    }
}

/// Why a volume is not attached; a refused [`AttachVolume`] says it.
fn refusal(call: &AttachVolume) -> String {
    let (code, replicas) = (call.reason.get(), call.replicas.get());
    let node = call.volume;
    let few = format!(
        "the volume is not attached, as fewer than {replicas} of these servers give memory"
    );
    let why = match u8::try_from(code).map(Reason::try_from) {
        _ if code == 0 => {
            return format!("{few}: some have not answered: does `qnic-rmem serve` run there?")
        }
        Ok(Ok(Reason::NoRoom)) => {
            let size = |pages: u64| ByteSize(pages.saturating_mul(PAGE_SIZE as u64));
            return format!(
                "the volume is not attached, as it needs {} ({} on {replicas} servers), and these \
                 servers can hold {} of it: serve more, or attach it with --thin",
                size(call.blocks.get().saturating_mul(replicas.into())),
                size(call.blocks.get()),
                size(call.room.get()),
            );
        }
        Ok(Ok(Reason::WrongKey)) => "has another key".to_owned(),
        Ok(Ok(Reason::VolumeInUse)) => "has given this volume to another client".to_owned(),
        Ok(Ok(Reason::TooManyClients)) => "has as many clients as it takes".to_owned(),
        Ok(Ok(Reason::Leaving)) => "is about to leave".to_owned(),
        _ => format!("has refused for reason {code}"),
    };
    format!("{few}: node {node} {why}")
}

fn attach(options: &AttachOptions) -> Result<()> {
    let memory = open()?;
    let mut call = AttachVolume {
        blocks: pages(options.size)?.into(),
        replicas: options.replicas.into(),
        server_count: (options.servers.len() as u16).into(),
        key: options.key.unwrap_or_default(),
        request_timeout_ms: (options.timeout.unwrap_or(0) * 1000).into(),
        flags: if options.thin { ATTACH_THIN } else { 0 }.into(),
        ..AttachVolume::default()
    };
    let (count, replicas) = (options.servers.len(), options.replicas);
    if count > MAX_SERVERS {
        bail!("a volume has at most {MAX_SERVERS} servers, and {count} are named");
    }
    if count < replicas.into() {
        bail!("{replicas} replicas need at least as many servers, and {count} is named");
    }
    for (index, server) in options.servers.iter().enumerate() {
        if options.servers[..index].contains(server) {
            bail!("server {server} is named twice: each is named once");
        }
    }
    for (place, server) in call.servers.iter_mut().zip(&options.servers) {
        *place = (*server).into();
    }
    match memory.attach(&mut call)? {
        Status::Ok => {
            println!("/dev/qnicmem{}", call.volume);
            eprintln!("its blocks have 4KiB: make file systems with such, as by mke2fs -b 4096");
        }
        Status::TimedOut => bail!("{}", refusal(&call)),
        Status::BadLength => bail!("{} is more than a volume can have", options.size),
        Status::Exhausted => {
            bail!("this NIC has all of its {MAX_VOLUMES} volumes already, or no datagram port left")
        }
        status => bail!("the volume is not attached: {status}"),
    }
    Ok(())
}

/// The volumes of this guest.
fn volumes(memory: &RemoteMemory) -> Result<Vec<VolumeInfo>> {
    let all = (0..MAX_VOLUMES as u32).map(|volume| memory.find(volume));
    let found = all.filter_map(|volume| volume.transpose());
    found.map(|volume| Ok(volume?)).collect()
}

fn detach(options: &DetachOptions) -> Result<()> {
    let memory = open()?;
    let volume = match (options.device, volumes(&memory)?.as_slice()) {
        (Some(device), _) => device,
        (None, [only]) => only.volume.get(),
        (None, []) => bail!("no volume is attached"),
        (None, _) => bail!("several volumes are attached: name one, as /dev/qnicmem0"),
    };
    let mut call = DetachVolume {
        volume: volume.into(),
        ..DetachVolume::default()
    };
    Ok(memory.detach(&mut call)?)
}

fn serve(options: &ServeOptions) -> Result<()> {
    let quota = options.quota.map(pages).transpose()?;
    let mut call = ServeMemory {
        clients: options.clients.into(),
        pages: pages(options.size)?.into(),
        quota: quota.unwrap_or(0).into(),
        key: options.key.unwrap_or_default(),
        lease_ms: (options.lease.unwrap_or(0) * 1000).into(),
        ..ServeMemory::default()
    };
    let served = open()?.serve(&mut call);
    match Status::try_from(call.status.get()) {
        Ok(Status::PortInUse) => bail!("this node gives memory already: leave first"),
        _ => Ok(served?),
    }
}

fn leave(options: &LeaveOptions) -> Result<()> {
    let timeout = Duration::from_secs(options.timeout.into());
    let flags = if options.now { LEAVE_NOW } else { 0 };
    let mut call = LeaveMemory {
        flags: flags.into(),
        timeout_ms: u32::try_from(timeout.as_millis())
            .unwrap_or(u32::MAX)
            .into(),
        ..LeaveMemory::default()
    };
    let left = open()?.leave(&mut call);
    match Status::try_from(call.status.get()) {
        Ok(Status::TimedOut) => bail!(
            "clients have not moved all their pages yet; this node goes on serving those, and \
             takes no new client: leave again"
        ),
        _ => Ok(left?),
    }
}

fn open() -> Result<RemoteMemory> {
    RemoteMemory::open().context("the NIC of this guest")
}

/// Does what the command line says.
pub(crate) fn main() -> Result<ExitCode> {
    match Arguments::parse().action {
        Action::Attach(options) => attach(&options)?,
        Action::Detach(options) => detach(&options)?,
        Action::Serve(options) => serve(&options)?,
        Action::Leave(options) => leave(&options)?,
        Action::Status(options) => {
            let status = status::Report::of(&open()?)?;
            if options.json {
                println!("{}", serde_json::to_string(&status)?);
            } else if options.prometheus {
                print!(
                    "{}",
                    prometheus::exposition(&serde_json::to_value(&status)?)
                );
            } else {
                print!("{status}");
            }
            return Ok(status.exit_code());
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let words = "qnic-rmem attach --size 1GiB --replicas 2 --servers 1,2,3 --key 0a";
        let Action::Attach(options) = Arguments::parse_from(words.split(' ')).action else {
            panic!("it is an attach");
        };
        assert_eq!(options.servers, [1, 2, 3]);
        assert_eq!(pages(options.size).unwrap(), 1 << 18);
        let mut bytes = [0; 16];
        bytes[15] = 10;
        assert_eq!(options.key, Some(Secret(bytes)));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "qnic-rmem attach --size 1GiB --servers",
            "qnic-rmem attach --size 1 --servers 1",
            "qnic-rmem attach --size 1GiB --replicas 5 --servers 1",
            "qnic-rmem attach --size 1GiB --servers 1 --key +1",
            "qnic-rmem serve --size 1MiB --key 0123456789012345678901234567890123",
            "qnic-rmem detach /dev/sda",
            "qnic-rmem serve --size 1MiB --lease 0",
            "qnic-rmem leave --timeout 100000",
        ] {
            assert!(
                Arguments::try_parse_from(words.split(' ')).is_err(),
                "{words}"
            );
        }
        assert!(pages(ByteSize(0)).is_err() && pages(ByteSize(4097)).is_err());
    }

    #[test]
    fn a_refusal_names_the_server_and_the_reason() {
        let refused = |reason: u16| {
            refusal(&AttachVolume {
                volume: 7.into(),
                blocks: (512 << 8).into(),
                replicas: 2.into(),
                reason: reason.into(),
                room: (768 << 8).into(),
                ..AttachVolume::default()
            })
        };
        let few = "the volume is not attached, as fewer than 2 of these servers give memory";
        let key = Reason::WrongKey as u16;
        assert_eq!(refused(key), format!("{few}: node 7 has another key"));
        let leaving = Reason::Leaving as u16;
        assert_eq!(refused(leaving), format!("{few}: node 7 is about to leave"));
        assert!(refused(0).contains("have not answered"));
        let unknown = format!("{few}: node 7 has refused for reason 999");
        assert_eq!(refused(999), unknown);
        let expected =
            "the volume is not attached, as it needs 1GiB (512MiB on 2 servers), and these \
                        servers can hold 768MiB of it: serve more, or attach it with --thin";
        assert_eq!(refused(Reason::NoRoom as u16), expected);
    }

    #[test]
    fn devices_have_numbers() {
        assert_eq!(device("/dev/qnicmem3"), Ok(3));
        assert_eq!(device("3"), Ok(3));
    }
}
