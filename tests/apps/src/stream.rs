//! One end of a channel that never ends by itself: to be killed, or to have its other end
//! killed. It prints the error that ends it, and exits with status 3.

use anyhow::Result;
use clap::Args;
use qnic::{ChannelOptions, Error, NodeId, Port, Receiver, SegmentName, Sender};
use serde_json::json;

use qnic_apps::demo::node::{register, say};
use qnic_apps::demo::options::{notification, START_LIMIT};

/// Port of the receiving end.
const PORT: Port = Port(13);
const CHANNEL: SegmentName = SegmentName(41);

/// Exit status when the channel ended.
const CHANNEL_ENDED: i32 = 3;

/// Messages after which the stream is called running.
const RUNNING: u64 = 50;

#[derive(Args)]
pub(crate) struct Options {
    /// Node of the receiving end; without it, this is the receiving end
    #[arg(long)]
    to: Option<u16>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut number = 0u64;
    let error = match options.to {
        Some(node) => {
            let (_nic, endpoint) = register(0)?;
            let replenish = notification(1);
            let mut sender = Sender::connect(
                &endpoint,
                (NodeId(node), PORT, CHANNEL),
                replenish,
                START_LIMIT,
            )?;
            until_error(|| {
                sender.send(&number.to_le_bytes(), None)?;
                number += 1;
                Ok(number)
            })?
        }
        None => {
            let (_nic, endpoint) = register(PORT.0)?;
            let options = ChannelOptions::new(16, 8, notification(1));
            let mut receiver = Receiver::open(&endpoint, CHANNEL, &options)?;
            say("listening", std::process::id())?;
            until_error(|| {
                let message = receiver.recv(None)?.to_vec();
                if message != number.to_le_bytes() {
                    return Err(Error::ChannelBroken("a message is missing"));
                }
                number += 1;
                Ok(number)
            })?
        }
    };
    let lost = matches!(error, Error::PeerLost { .. });
    let ended = json!({"error": error.to_string(), "lost": lost, "messages": number});
    say("ended", ended)?;
    std::process::exit(CHANNEL_ENDED);
}

fn until_error(mut step: impl FnMut() -> qnic::Result<u64>) -> Result<Error> {
    loop {
        match step() {
            Ok(RUNNING) => say("streaming", RUNNING)?,
            Ok(_) => {}
            Err(error) => return Ok(error),
        }
    }
}
