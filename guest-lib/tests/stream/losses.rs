//! Retransmissions compared with losses, at 1 % and 5 % of independent loss (S6).
//!
//! ```text
//!   many frames             Data  Data  ×  Data  Data     1 for 1
//!                                  Ack   ×  Ack           0 for 1: the next Ack repeats it
//!   answers at once         ping ──►  × pong              2 for 1: pong, and ping, as pong acknowledges it
//!   answers soon            ping ──►  × Ack   ◄── pong    0 for 1: pong repeats it
//!   answers late            ping ──►  × Ack               1 for 1: ping
//! ```
//! The minimum is one for each lost Data frame. Where no later frame repeats an acknowledgement, losing it
//! adds one: the sender cannot know whether the frame or the acknowledgement was lost. Each test prints a
//! row for each wire (`--nocapture`).

use crate::wire::{Faults, World, MILLISECOND, SECOND};
use qnic::stream_protocol::{Config, ConnectionId, Counters, Error};

/// Shares of frames, of 1,000, and how long a frame takes.
const WIRES: [(u32, u64); 4] = [
    (10, 20_000),
    (50, 20_000),
    (10, MILLISECOND),
    (50, MILLISECOND),
];

fn connected(loss: u32, trip: u64) -> (World, [ConnectionId; 2]) {
    let config = Config {
        receive_frames: 256,
        send_frames: 256,
        ..Config::default()
    };
    let faults = Faults {
        loss,
        repeat: 0,
        reorder: 0,
        trip,
        delay: 0,
    };
    let mut world = World::new(1, 2, &config, faults);
    let (ours, theirs) = world.connect();
    (world.lost_data, world.lost_acks) = (0, 0);
    (world, [ours, theirs])
}

/// The counts of the wire and of both ends.
struct Counts {
    lost_data: u64,
    lost_acks: u64,
    resent: u64,
}

impl Counts {
    fn of(world: &World, what: &str) -> Self {
        let sum = |count: fn(&Counters) -> u64| {
            let ends = world.ends.iter().map(|end| end.counters());
            ends.map(|counters| count(&counters)).sum::<u64>()
        };
        let (sent, resent) = (
            sum(|it| it.data_frames_sent),
            sum(|it| it.data_frames_resent),
        );
        let (lost_data, lost_acks) = (world.lost_data, world.lost_acks);
        println!(
            "{what}, {} ‰ loss, {} µs: {sent} sent, {lost_data} lost and {lost_acks} acknowledgements, \
             {resent} sent again: {:.2}",
            world.faults.loss,
            world.faults.trip / 1000,
            resent as f64 / lost_data as f64
        );
        assert!(
            lost_data > 50 && resent >= lost_data,
            "{resent} for {lost_data}"
        );
        Counts {
            lost_data,
            lost_acks,
            resent,
        }
    }
}

/// A frame is sent again in vain only if a whole window is acknowledged at once, and that Ack is lost.
#[test]
fn of_many_frames_those_are_sent_again_that_were_lost() {
    for (loss, trip) in WIRES {
        let (mut world, [ours, theirs]) = connected(loss, trip);
        let bytes = vec![5; 30_000_000];
        assert!(world.transfer((0, ours), (1, theirs), &bytes) == bytes);
        let counts = Counts::of(&world, "30 MB");
        assert!(counts.resent <= counts.lost_data + counts.lost_acks);
        assert!(counts.resent <= counts.lost_data + counts.lost_data / 20);
    }
}

/// Sends a few bytes back and forth; each side waits `think` before it answers.
fn talk(world: &mut World, ids: [ConnectionId; 2], think: u64) {
    const MESSAGE: [u8; 64] = [7; 64];
    for number in 0..10_000 {
        let (from, to) = (number % 2, (number + 1) % 2);
        assert_eq!(world.write(from, ids[from], &MESSAGE), Ok(MESSAGE.len()));
        let (mut bytes, mut got) = ([0; MESSAGE.len()], 0);
        world.drive(60 * SECOND, |world| {
            match world.ends[to].read(ids[to], &mut bytes) {
                Ok(count) => got += count,
                Err(error) => assert_eq!(error, Error::WouldBlock),
            }
            got == MESSAGE.len()
        });
        world.pass(think);
    }
}

/// The answer is the acknowledgement: if it is lost, two frames are not acknowledged.
#[test]
fn an_answer_that_is_lost_costs_what_it_acknowledges_too() {
    for (loss, trip) in WIRES {
        let (mut world, ids) = connected(loss, trip);
        talk(&mut world, ids, 0);
        let counts = Counts::of(&world, "answers at once");
        assert!(counts.resent <= 2 * counts.lost_data + counts.lost_acks);
    }
}

/// The acknowledgement goes out before the answer, which repeats it before the timer fires.
#[test]
fn an_acknowledgement_that_an_answer_repeats_costs_nothing() {
    for (loss, trip) in WIRES {
        let (mut world, ids) = connected(loss, trip);
        talk(&mut world, ids, 3 * MILLISECOND);
        let counts = Counts::of(&world, "answers after 3 ms");
        assert!(counts.lost_acks > 50);
        assert!(counts.resent <= counts.lost_data + counts.lost_data / 10);
    }
}

/// The answer comes long after the timer has fired.
#[test]
fn an_acknowledgement_that_nothing_repeats_costs_one_frame() {
    for (loss, trip) in WIRES {
        let (mut world, ids) = connected(loss, trip);
        talk(&mut world, ids, 50 * MILLISECOND);
        let counts = Counts::of(&world, "answers after 50 ms");
        assert!(counts.resent <= counts.lost_data + counts.lost_acks);
    }
}
