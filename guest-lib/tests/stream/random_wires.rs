//! Streams on wires that lose, repeat and reorder, against an oracle: every byte comes once and in
//! order, both ends end in bounded time, and hardly more is sent again than was lost (S6).

use crate::wire::{address, pattern, Faults, World, MILLISECOND, SECOND};
use qnic::stream_protocol::{Config, ConnectionId, Error};

/// One direction of a connection: the bytes to be written and read.
struct Flow {
    stream: u64,
    from: usize,
    to: usize,
    length: u64,
    written: u64,
    read: u64,
    ended: bool,
}

/// A connection with two directions.
struct Talk {
    ids: [ConnectionId; 2],
    ends: [usize; 2],
    flows: [Flow; 2],
    closed: [bool; 2],
}

impl Talk {
    fn new(world: &mut World, number: u64, ends: [usize; 2]) -> Self {
        let [from, to] = ends;
        world.ends[to].listen(true);
        let now = world.now;
        let ours = world.ends[from].connect(now, address(to), 0).unwrap();
        let mut theirs = None;
        world.drive(30 * SECOND, |world| {
            theirs = theirs.or_else(|| world.ends[to].accept());
            theirs.is_some() && world.ends[from].is_open(ours).unwrap()
        });
        let mut flow = |direction: u64, from, to| Flow {
            stream: number * 2 + direction,
            from,
            to,
            length: world.rng.u64(0..=400_000),
            written: 0,
            read: 0,
            ended: false,
        };
        Talk {
            flows: [flow(0, from, to), flow(1, to, from)],
            ids: [ours, theirs.unwrap().0],
            ends,
            closed: [false; 2],
        }
    }

    /// Writes, reads and closes a bit; read bytes are checked.
    fn go_on(&mut self, world: &mut World) {
        for (direction, flow) in self.flows.iter_mut().enumerate() {
            let (writer, reader) = (self.ids[direction], self.ids[1 - direction]);
            if world.rng.u8(..) < 200 {
                flow.write(world, writer);
            }
            if world.rng.u8(..) < 150 {
                flow.read(world, reader);
            }
        }
        for side in 0..2 {
            let [sends, receives] = [&self.flows[side], &self.flows[1 - side]];
            if !self.closed[side] && sends.ended && receives.ended && receives.is_read() {
                world.ends[self.ends[side]].close(world.now, self.ids[side]);
                self.closed[side] = true;
            }
        }
    }
}

impl Flow {
    fn is_read(&self) -> bool {
        // One more than the bytes: the end.
        self.read == self.length + 1
    }

    fn write(&mut self, world: &mut World, id: ConnectionId) {
        if self.ended {
            return;
        }
        let chunk = world.rng.u64(1..30_000).min(self.length - self.written);
        let bytes: Vec<u8> = (self.written..self.written + chunk)
            .map(|position| pattern(self.stream, position))
            .collect();
        match world.write(self.from, id, &bytes) {
            Ok(count) => self.written += count as u64,
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
        if self.written == self.length {
            world.ends[self.from].finish(id).unwrap();
            self.ended = true;
        }
    }

    fn read(&mut self, world: &mut World, id: ConnectionId) {
        if self.is_read() {
            return;
        }
        let mut bytes = vec![0; world.rng.usize(1..30_000)];
        match world.ends[self.to].read(id, &mut bytes) {
            Ok(0) => {
                assert_eq!(self.read, self.length, "the end comes behind all bytes");
                self.read += 1;
            }
            Ok(count) => {
                for byte in &bytes[..count] {
                    assert!(self.read < self.length, "more than was written");
                    assert_eq!(*byte, pattern(self.stream, self.read), "byte {}", self.read);
                    self.read += 1;
                }
            }
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
    }
}

/// Runs connections among three ends; returns the numbers of frames sent again and of lost ones.
fn run(seed: u64, config: &Config, faults: Faults) -> (u64, u64, u64) {
    let mut world = World::new(seed, 3, config, faults);
    let mut talks: Vec<_> = (0..4)
        .map(|number| {
            let from = world.rng.usize(0..3);
            let to = (from + world.rng.usize(1..3)) % 3;
            Talk::new(&mut world, number, [from, to])
        })
        .collect();
    world.lost_data = 0;
    world.drive(300 * SECOND, |world| {
        talks.iter_mut().for_each(|talk| talk.go_on(world));
        // Programs also act while the wire is quiet.
        world.pass(MILLISECOND / 10);
        talks.iter().all(|talk| talk.closed == [true; 2])
    });
    world.drive(30 * SECOND, |world| {
        world.ends.iter().all(|end| end.connections() == 0)
    });
    let counters = world.ends.iter().map(|end| end.counters());
    let (mut resent, mut outside) = (0, 0);
    for counters in counters {
        resent += counters.data_frames_resent;
        outside += counters.frames_outside + counters.malformed_frames;
        assert_eq!(counters.connections_failed, 0);
    }
    assert_eq!(outside, 0);
    (
        resent,
        world.lost_data,
        world
            .ends
            .iter()
            .map(|end| end.counters().data_frames_sent)
            .sum(),
    )
}

fn faults(loss: u32, repeat: u32, reorder: u32) -> Faults {
    Faults {
        loss,
        repeat,
        reorder,
        trip: 100_000,
        delay: 400_000,
    }
}

#[test]
fn every_byte_arrives_once_and_in_order_on_any_wire() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let worst = [0, 50, 200][rng.usize(0..3)];
        let mut share = || rng.u32(0..=worst);
        let faults = faults(share(), share(), share());
        run(seed, &Config::default(), faults);
    }
}

#[test]
fn small_pools_and_small_frames_do_as_well() {
    let config = Config {
        connections: 6,
        frame_bytes: 300,
        receive_frames: 9,
        send_frames: 8,
        ..Config::default()
    };
    for seed in 100..106 {
        run(seed, &config, faults(50, 20, 100));
    }
}

/// The minimum is one for each lost frame. Prints a row for each wire (`--nocapture`).
#[test]
fn hardly_more_is_sent_again_than_was_lost() {
    println!("loss repeat | sent lost resent");
    for (loss, repeat) in [(10, 0), (50, 0), (200, 0), (50, 50)] {
        let (mut resent, mut lost, mut sent) = (0, 0, 0);
        for seed in 200..206 {
            let counts = run(seed, &Config::default(), faults(loss, repeat, 0));
            resent += counts.0;
            lost += counts.1;
            sent += counts.2;
        }
        println!("{loss:4} {repeat:6} | {sent} {lost} {resent}");
        // A last frame without an acknowledgement is sent again, even if only the
        // acknowledgement was lost.
        assert!(resent <= lost + lost / 10 + 5, "{resent} for {lost}");
    }
}

/// A wire that reorders makes frames look lost, until the stream has learnt how far it reorders.
#[test]
fn a_long_stream_learns_how_far_a_wire_reorders() {
    for (seed, loss) in [(1, 0), (2, 20), (3, 50)] {
        let mut world = World::new(seed, 2, &Config::default(), faults(loss, 20, 200));
        let (ours, theirs) = world.connect();
        world.lost_data = 0;
        let bytes = vec![5; 30_000_000];
        let read = world.transfer((0, ours), (1, theirs), &bytes);
        assert!(read == bytes);
        let counters = world.ends[0].counters();
        let (resent, lost) = (counters.data_frames_resent, world.lost_data);
        println!(
            "{} sent, {lost} lost, {resent} resent",
            counters.data_frames_sent
        );
        assert!(resent <= lost + lost / 4 + 150, "{resent} for {lost}");
    }
}

#[test]
fn a_seed_gives_the_same_each_time() {
    let all = faults(100, 50, 100);
    assert_eq!(
        run(7, &Config::default(), all),
        run(7, &Config::default(), all)
    );
}
