//! A process that sends every message back, and one that talks with it until one of them is
//! killed: the other one then says why it ended, with exit status 3.

use std::time::Duration;

use anyhow::{bail, Result};
use clap::Args;
use qnic::message::{Destination, Pattern, Source, Tag};
use qnic::{Endpoint, Error, NodeId, Port};
use qnic_apps::demo::pattern;

use qnic_apps::demo::node::{import, register, say, say_line, Exported};
use qnic_apps::demo::options::{ANSWER_LIMIT, DATA};

/// Port of the one that sends back.
const ECHO_PORT: Port = Port(13);
/// Longest message in bytes.
const LONGEST: usize = 100_000;
/// Rounds after which it is said that messages come and go.
const RUNNING: u64 = 20;
/// How long nothing comes or is sent before a wait for a message that does not come: longer than what has been
/// sent is watched for.
const QUIET: Duration = Duration::from_secs(2);
/// Exit status when a message failed.
const MESSAGE_FAILED: i32 = 3;

#[derive(Args)]
pub(crate) struct EchoOptions {
    /// Node of the process that sends back; without it, this is that process
    #[arg(long)]
    peer: Option<u16>,
    /// Talks for a while only, then waits for a message that does not come
    #[arg(long, requires = "peer")]
    quiet: bool,
}

/// Runs until a message fails.
pub(crate) fn echo(options: &EchoOptions) -> Result<()> {
    let mut rounds = 0;
    let error = match options.peer {
        None => {
            let (_nic, endpoint) = register(ECHO_PORT.0)?;
            let memory = Exported::new(&endpoint, DATA, LONGEST)?;
            say("serving", std::process::id())?;
            until_error(&mut rounds, |_| send_back(&endpoint, &memory))?
        }
        Some(node) => {
            let (_nic, endpoint) = register(0)?;
            let memory = Exported::new(&endpoint, DATA, 2 * LONGEST)?;
            // It is there when it exports.
            import(&endpoint, node, ECHO_PORT, DATA)?;
            let peer = (NodeId(node), ECHO_PORT);
            if options.quiet {
                (0..RUNNING).try_for_each(|round| talk(&endpoint, &memory, peer, round))?;
                return wait_in_vain(&endpoint, &memory, peer);
            }
            until_error(&mut rounds, |round| talk(&endpoint, &memory, peer, round))?
        }
    };
    fail(&error, rounds)
}

/// Says why a message failed.
fn fail(error: &Error, rounds: u64) -> ! {
    let failed = serde_json::json!({"failed": error.to_string(), "rounds": rounds});
    // A program without an output has said it all by its status.
    drop(say_line(&failed));
    std::process::exit(MESSAGE_FAILED);
}

/// Sees that no message comes for some seconds, then waits for one of a process by a receive and by a
/// probe, and says why both fail. Nothing is sent meanwhile.
fn wait_in_vain(
    endpoint: &Endpoint,
    memory: &Exported,
    (node, port): (NodeId, Port),
) -> Result<()> {
    // It names no node, so it has none watched.
    let anything = Pattern::any_tag(Source::Any);
    let quiet = endpoint.receive(&anything, memory.part(LONGEST, LONGEST));
    match quiet.timeout(QUIET).wait() {
        Err(Error::TimedOut) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => bail!("a message has come that was never sent"),
    }
    let pattern = Pattern::tagged(Source::Process(node, port), Tag(RUNNING));
    let mut receive = endpoint.receive(&pattern, memory.part(0, LONGEST)).post()?;
    say("talking", std::process::id())?;
    match (receive.wait(None), endpoint.probe(&pattern).wait()) {
        (Err(_), Err(error)) => fail(&error, RUNNING),
        (_, _) => bail!("a message has come that was never sent"),
    }
}

fn until_error(rounds: &mut u64, mut round: impl FnMut(u64) -> qnic::Result<()>) -> Result<Error> {
    loop {
        if let Err(error) = round(*rounds) {
            return Ok(error);
        }
        *rounds += 1;
        if *rounds == RUNNING {
            say("talking", std::process::id())?;
        }
    }
}

/// Sends the next message back to its sender.
fn send_back(endpoint: &Endpoint, memory: &Exported) -> qnic::Result<()> {
    let pattern = Pattern::any_tag(Source::Any);
    let got = endpoint.receive(&pattern, memory.part(0, LONGEST)).wait()?;
    let to = Destination::tagged(got.node, got.port, got.tag).immediate(got.immediate);
    let part = memory.part(0, got.length as usize);
    endpoint.send(&to, part).wait().map(drop)
}

/// Sends a message, and compares what comes back. Every other one is long.
fn talk(
    endpoint: &Endpoint,
    memory: &Exported,
    (node, port): (NodeId, Port),
    round: u64,
) -> qnic::Result<()> {
    let length = if round % 2 == 0 { LONGEST } else { 50 };
    let bytes = pattern::bytes(round, length);
    memory.buffer.write(0, &bytes)?;
    let pattern = Pattern::tagged(Source::Process(node, port), Tag(round));
    let back = memory.part(LONGEST, LONGEST);
    let mut answer = endpoint.receive(&pattern, back).post()?;
    let to = Destination::tagged(node, port, Tag(round));
    endpoint
        .send(&to, memory.part(0, length))
        .timeout(ANSWER_LIMIT)
        .wait()?;
    answer.wait(Some(ANSWER_LIMIT))?;
    match memory.buffer.read_vec(LONGEST, length)? == bytes {
        true => Ok(()),
        false => Err(Error::ChannelBroken("another message came back")),
    }
}
