//! The program that runs on the nodes: one end of the demo, of a test or of a
//! benchmark, by subcommand.
//!
//! Exit status: 0 if everything was right, 1 if not, 2 for a wrong command line.

mod bench;
mod collective_bench;
mod collectives;
mod contend;
mod disks;
mod exchange;
mod floor;
mod forbidden_maps;
mod forked;
mod growth_bench;
mod guarded;
mod hostile_guest;
mod isolation_probe;
mod keys;
mod life;
mod load;
mod lock_waiter;
mod mapping;
mod memory_server;
mod messages;
mod ordering;
mod parallel;
mod pools;
mod pressure;
mod proc_status;
mod queue_fuzzer;
mod raw;
mod remap;
mod remote_memory;
mod requests;
mod rmem;
mod shared_memory;
mod signals;
mod stream;
mod two_nics;
mod udp;
mod wakeups;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "qnic-app",
    version,
    about = "One end of a qnic demo, test or benchmark"
)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    #[command(flatten)]
    Demo(qnic_apps::demo::Role),
    /// Measures pages of a block device, one at a time and many at once
    DiskBench(disks::BenchOptions),
    /// Writes pages to a file, a block device or memory of its own, reads them and compares
    DiskVerify(disks::VerifyOptions),
    /// Serves a block device in its memory to nbd, until it is killed
    NbdServer(disks::ServerOptions),
    /// Exchanges verified data with every other node at once
    Exchange(exchange::Options),
    /// Finds out whether a fence of this machine holds for threads of its host
    Fences(ordering::Options),
    /// Writes to a peer without end, to be killed or cut off
    Load(load::Options),
    /// Serves memory until a notification tells it to end, and checks it then
    MemoryServer(memory_server::Options),
    /// Exchanges random tagged messages with processes of all nodes, and checks each
    Messages(messages::TrafficOptions),
    /// Lets processes that exchange messages go on beside a slow one
    MessagePrompt(messages::PromptOptions),
    /// Measures messages beside writes
    MessageBench(messages::BenchOptions),
    /// Sends messages back, or talks with the process that does, to be killed or cut off
    MessageEcho(messages::EchoOptions),
    /// Tries to reach what is not its own; succeeds if every attempt is refused
    IsolationProbe(isolation_probe::Options),
    /// Measures what NetVM's evaluation does, between the NICs `near` and `far` of this machine
    Paper,
    /// Measures transfers to a demo target
    Bench(bench::Options),
    /// Contends with other processes for a lock, a semaphore and a monitor
    Contend(contend::Options),
    /// Takes part in collectives of a group with processes of all nodes, and checks each
    Collectives(collectives::Options),
    /// Measures collectives beside a tree of writes
    CollectiveBench(collective_bench::Options),
    /// Measures small writes of many endpoints and to many peers
    GrowthBench(growth_bench::Options),
    /// Computes the heat on a plate, as a rank of a machine
    Heat(parallel::HeatOptions),
    /// Solves Poisson's equation, as a rank of a machine
    ConjugateGradient(parallel::GradientOptions),
    /// Plays the game of life, as a rank of a machine
    GameOfLife(parallel::GameOptions),
    /// Forks between its transfers: they stay exact, and children are refused
    Forked(forked::Options),
    /// Exports segments with different rights, and compares them at the end
    KeyOwner,
    /// Tries wrong, stale and insufficient keys on a key owner's segments
    KeyTester(qnic_apps::demo::node::Peer),
    /// Does with exported memory what programs do, and compares what peers get
    Life(life::Options),
    /// Answers streams and datagrams over shared pools until it is killed
    PoolServer(pools::ServerOptions),
    /// Sends a stream and datagrams over shared pools, and compares what comes of them
    PoolClient(pools::ClientOptions),
    /// Holds the largest shared pools, to be killed
    PoolHolder(pools::HolderOptions),
    /// Measures streams and datagrams over shared pools beside TCP and UDP
    PoolBench(pools::BenchOptions),
    /// Exports more than the machine has RAM, and transfers, checks and compares
    Pressure(pressure::Options),
    /// Takes exported memory away while a peer writes to it, a million times
    Remap(remap::Options),
    /// Has many requests under way, to be paused or killed: each is told once
    Requests(requests::Options),
    /// Writes to the memory of `remap`
    RemapWriter(qnic_apps::demo::node::Peer),
    /// Gives memory to other nodes until it is killed; host mode only
    RemoteMemoryServer(remote_memory::ServerOptions),
    /// Writes and reads a volume in the memory of other nodes, and compares, until it is killed;
    /// host mode only
    RemoteMemoryClient(remote_memory::ClientOptions),
    /// Measures interrupts between two guests, by the doorbells of ivshmem; without an end if the other
    /// side ends: run it under `timeout`
    DoorbellBench(wakeups::DoorbellOptions),
    /// Measures notifications between two processes that sleep until they come
    WakeupBench(wakeups::NotificationOptions),
    /// Measures a ping-pong and copies through memory that two guests share
    SharedMemoryBench(shared_memory::Options),
    /// Uses every kind of notification, and channels, with a peer
    Signals(signals::Options),
    /// Sends or receives through a channel without end, to be killed or cut off
    Stream(stream::Options),
    /// Waits for a lock, to be killed there, to survive, or to recover it
    LockWaiter(lock_waiter::Options),
    /// Writes random bytes all over its own window for a while
    QueueFuzzer(queue_fuzzer::Options),
    /// Sends datagrams of UDP back, until it is killed
    UdpEcho,
    /// Has datagrams of UDP come back, and compares them
    UdpExchange(udp::Options),
    /// Takes the device from its driver and goes at it with all rights of a kernel
    HostileGuest(hostile_guest::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    let path = std::env::args_os().next().unwrap_or_default();
    if Path::new(&path).ends_with("qnic-rmem") {
        return rmem::main();
    }
    run(Arguments::parse().role).map(|()| ExitCode::SUCCESS)
}

fn run(role: Role) -> anyhow::Result<()> {
    match role {
        Role::Demo(role) => role.run(),
        Role::DiskBench(options) => disks::bench(&options),
        Role::DiskVerify(options) => disks::verify(&options),
        Role::NbdServer(options) => disks::serve(&options),
        Role::Exchange(options) => exchange::run(&options),
        Role::Fences(options) => ordering::run(&options),
        Role::Load(options) => load::run(&options),
        Role::MemoryServer(options) => memory_server::run(&options),
        Role::Messages(options) => messages::traffic(&options),
        Role::MessagePrompt(options) => messages::prompt(&options),
        Role::MessageBench(options) => messages::bench(&options),
        Role::MessageEcho(options) => messages::echo(&options),
        Role::IsolationProbe(options) => isolation_probe::run(&options),
        Role::Paper => two_nics::run(),
        Role::Bench(options) => bench::run(&options),
        Role::Contend(options) => contend::run(&options),
        Role::Collectives(options) => collectives::run(&options),
        Role::CollectiveBench(options) => collective_bench::run(&options),
        Role::GrowthBench(options) => growth_bench::run(&options),
        Role::Heat(options) => parallel::plate(&options),
        Role::ConjugateGradient(options) => parallel::gradient(&options),
        Role::GameOfLife(options) => parallel::game(&options),
        Role::Forked(options) => forked::run(&options),
        Role::KeyOwner => keys::run_owner(),
        Role::KeyTester(options) => keys::run_tester(&options),
        Role::Life(options) => life::run(&options),
        Role::PoolServer(options) => pools::serve(&options),
        Role::PoolClient(options) => pools::client(&options),
        Role::PoolHolder(options) => pools::hold(&options),
        Role::PoolBench(options) => pools::bench(&options),
        Role::Pressure(options) => pressure::run(&options),
        Role::Remap(options) => remap::run(&options),
        Role::Requests(options) => requests::run(&options),
        Role::RemapWriter(options) => remap::run_writer(&options),
        Role::RemoteMemoryServer(options) => remote_memory::serve(&options),
        Role::RemoteMemoryClient(options) => remote_memory::verify(&options),
        Role::DoorbellBench(options) => wakeups::by_doorbell(&options),
        Role::WakeupBench(options) => wakeups::by_notification(&options),
        Role::SharedMemoryBench(options) => shared_memory::run(&options),
        Role::Signals(options) => signals::run(&options),
        Role::Stream(options) => stream::run(&options),
        Role::LockWaiter(options) => lock_waiter::run(&options),
        Role::QueueFuzzer(options) => queue_fuzzer::run(&options),
        Role::UdpEcho => udp::echo(),
        Role::UdpExchange(options) => udp::exchange(&options),
        Role::HostileGuest(options) => hostile_guest::run(&options),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_options_of_all_programs_are_consistent() {
        super::Arguments::command().debug_assert();
    }

    /// A list shows its commas wherever help shows it.
    #[test]
    fn lists_say_their_form() {
        let mut lists = 0;
        for program in super::Arguments::command().get_subcommands() {
            for list in program
                .get_arguments()
                .filter(|it| it.get_value_delimiter().is_some())
            {
                let form = list.get_value_names().unwrap_or_default().join(" ");
                assert!(
                    form.contains(",…"),
                    "{} --{}: {form}",
                    program.get_name(),
                    list.get_id()
                );
                lists += 1;
            }
        }
        assert!(lists > 5, "{lists}");
    }
}
