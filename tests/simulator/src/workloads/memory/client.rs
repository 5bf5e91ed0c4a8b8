//! A client: attaches a volume, reads and writes it, and compares.

use std::collections::BTreeMap;
use std::sync::Arc;

use qnic_driver::datagram::Buffer;
use qnic_driver::platform::Platform;
use qnic_driver::remote_memory::{
    AttachError, ClientConfig, ClientState, ConfigError, Failure, Limits, Refusal, ServerState,
    Volume,
};

use super::blocks::{Blocks, Pending, Read};
use super::user::{content, fill, End, User};
use super::{
    server_of, Module, BLOCKS, CLIENT_PORT, KEY, LEASE, LOOK, MS, OUTAGE, REQUESTS,
    REQUEST_TIMEOUT, SERVER_TIMEOUT,
};
use crate::common::{Phase, SlotState};
use crate::machine::platform::SimPlatform;
use crate::process::worker::{Next, Worker};
use crate::process::{Ended, ProcessContext, Result};
use crate::schedule::{lock, trace};

/// Longest pause between two steps.
const PAUSE: u64 = 12 * MS;

/// By how much more a request may take: its NIC gives up a peer that is gone, and returns buffers.
const SLACK: u64 = 20 * MS;

/// What a request is.
#[derive(Debug, Clone, Copy)]
enum What {
    Read(Read),
    Write(Pending),
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Request {
    what: What,
    issued: u64,
}

/// A volume that is attached.
pub(super) struct Client<'a> {
    pub(super) context: Module<'a>,
    /// None only while another one is attached in its place.
    volume: Option<Volume<SimPlatform>>,
    user: Arc<User>,
    /// Pages that are its own.
    pages: Vec<Buffer<SimPlatform>>,
    open: BTreeMap<u64, Request>,
    blocks: Blocks,
    next: u64,
    /// Until then it kills no server.
    quiet_until: u64,
    /// Requests that have failed.
    pub(super) failures: Vec<Failure>,
    /// It uses mostly so many blocks, from the first one on.
    hot: u64,
}

impl<'a> Module<'a> {
    /// A client from its start to its end.
    pub(super) fn use_memory(self) -> Result<()> {
        let Some((volume, user)) = self.attach()? else {
            // Too few servers are left.
            self.set_verified();
            return self.rest();
        };
        let mut client = Client {
            context: self,
            volume: Some(volume),
            user,
            pages: Vec::new(),
            open: BTreeMap::new(),
            blocks: Blocks::new(BLOCKS),
            next: 0,
            quiet_until: 0,
            failures: Vec::new(),
            hot: BLOCKS,
        };
        while client.pages.len() < REQUESTS {
            match self.driver.platform().new_page() {
                Ok(page) => client.pages.push(Buffer::new(page)),
                Err(_) => self.sleep(100_000)?,
            }
        }
        // Some programs use one block again and again: what comes late finds newer writes there.
        if self.common.schedule.chance(500) {
            client.hot = 1;
        }
        let worked = client.live();
        let open = client.open.len();
        let status = client.volume.as_ref().map(Volume::status);
        let bad = status.map_or(0, |status| status.counters.bad_answers);
        let careful = self.of.careful;
        assert!(
            bad == 0 || !careful,
            "memory worker {}: {bad} wrong answers of servers",
            self.slot
        );
        // What is under way ends with the volume; then all pages are here again.
        drop(client.volume.take());
        let ended = std::iter::from_fn(|| client.user.next()).count();
        assert_eq!(
            ended, open,
            "memory worker {}: requests that never end",
            self.slot
        );
        worked
    }

    /// Attaches a volume. None: there are too few servers, and there will not be more.
    fn attach(&self) -> Result<Option<(Volume<SimPlatform>, Arc<User>)>> {
        let port = CLIENT_PORT + (self.slot - self.of.first_client) as u16;
        loop {
            let user = User::new(&self.common.schedule);
            match self
                .driver
                .attach_volume(port, self.volume_config(), user.clone())
            {
                Ok(volume) => {
                    trace!(
                        self.common.schedule,
                        "memory worker {}: attached",
                        self.slot
                    );
                    return Ok(Some((volume, user)));
                }
                Err(AttachError::Bind(error)) => self.after_bind_error(error)?,
                Err(AttachError::Config(ConfigError::NoMemory)) => self.sleep(100_000)?,
                Err(AttachError::Refused(reason)) => {
                    // Perhaps its node is gone.
                    self.check_alive()?;
                    let careful = self.of.careful;
                    assert!(!careful, "a volume is refused for no reason: {reason:?}");
                    let serving = lock(&self.of.serving).slots.len();
                    let few = serving < self.of.replicas;
                    match self.common.phase() {
                        Phase::Exit => return Ok(None),
                        Phase::Drain if few => return Ok(None),
                        _ => self.sleep(LOOK)?,
                    }
                }
                Err(AttachError::Interrupted) => return Err(Ended),
                Err(error) => panic!("memory worker {}: {error}", self.slot),
            }
        }
    }

    fn volume_config(&self) -> ClientConfig {
        let settings = &self.common.settings;
        let times = self.of.times;
        let mut limits = Limits {
            request_timeout: times * REQUEST_TIMEOUT,
            server_timeout: times * SERVER_TIMEOUT,
            attach_timeout: times * 3 * LEASE,
            renew_interval: times * 25 * MS,
            ..Limits::default()
        };
        limits.retransmit.initial = times * 10 * MS;
        limits.retransmit.floor = MS;
        limits.retransmit.floor_oldest = MS;
        limits.retransmit.ceiling = times * 20 * MS;
        limits.retransmit.ack_delay = MS;
        ClientConfig {
            volume: self.slot as u64,
            client: self.common.schedule.any() | 1,
            key: KEY,
            blocks: BLOCKS,
            replicas: self.of.replicas,
            thin: false,
            servers: (0..settings.options.nodes).map(server_of).collect(),
            requests: REQUESTS,
            copies: 2,
            limits,
        }
    }
}

impl Worker for Client<'_> {
    fn context(&self) -> &ProcessContext {
        self.context.context
    }

    fn step(&mut self) -> Result<Next> {
        self.attach_again()?;
        let schedule = &self.context.context.common.schedule;
        for _ in 0..schedule.range(1..4) {
            let of = if schedule.chance(700) {
                self.hot
            } else {
                BLOCKS
            };
            let block = schedule.range(0..of);
            self.request(block, schedule.chance(500))?;
        }
        self.collect()?;
        if self.context.of.careful {
            self.kill_some();
            return Ok(Next::GoOn);
        }
        Ok(Next::end_if(schedule.chance(3)))
    }

    fn pause(&mut self) -> Result<()> {
        let schedule = &self.context.common.schedule;
        let share = if schedule.chance(300) { 50 } else { 1 };
        self.context.sleep(schedule.range(0..PAUSE / share))
    }

    /// Waits until nothing breaks any more, and sees that everything works again.
    fn begin_to_serve(&mut self) -> Result<()> {
        let context = self.context;
        self.wait_for_all()?;
        context.set_idle(true);
        while context.common.phase() == Phase::Work {
            let changed = &context.common.phase_changed;
            context.common.schedule.wait(Some(changed), None);
            context.check_alive()?;
        }
        self.verify()
    }
}

impl Client<'_> {
    fn volume(&self) -> Result<&Volume<SimPlatform>> {
        self.volume.as_ref().ok_or(Ended)
    }

    /// If servers have taken the volume back, it fails as a whole, and another one that is empty is attached.
    pub(super) fn attach_again(&mut self) -> Result<()> {
        if !self.volume()?.status().taken_back {
            return Ok(());
        }
        let (slot, careful) = (self.context.slot, self.context.of.careful);
        assert!(!careful, "memory worker {slot}: its volume is taken back");
        self.wait_for_all()?;
        self.volume = None;
        let Some((volume, user)) = self.context.attach()? else {
            self.context.set_verified();
            return self.context.rest();
        };
        (self.volume, self.user) = (Some(volume), user);
        self.blocks = Blocks::new(BLOCKS);
        Ok(())
    }

    /// Begins a request, when there is room for one.
    pub(super) fn request(&mut self, block: u64, writes: bool) -> Result<()> {
        let (slot, now) = (self.context.slot, self.context.common.schedule.now());
        let page = loop {
            match self.pages.pop() {
                Some(page) => break page,
                None => self.wait()?,
            }
        };
        self.next += 1;
        let token = self.next;
        let what = match writes {
            true => {
                fill(&page, token);
                What::Write(self.blocks.write(block, token))
            }
            false => What::Read(self.blocks.read(block)),
        };
        trace!(
            self.context.common.schedule,
            "memory worker {slot}: request {token}, block {block}, writes: {writes}"
        );
        self.open.insert(token, Request { what, issued: now });
        let taken = match writes {
            true => self.volume()?.write(token, block, page),
            false => self.volume()?.read(token, block, page),
        };
        if let Err((page, refusal)) = taken {
            // Its NIC is gone, or still has the buffer of a read that has ended; or servers have taken
            // the volume back.
            assert!(
                matches!(refusal, Refusal::Busy | Refusal::TakenBack),
                "memory worker {slot}: request {token}: {refusal}"
            );
            self.pages.push(page);
            self.open.remove(&token);
            if let What::Write(pending) = what {
                self.blocks.written(pending, false);
            }
            self.context.sleep(MS)?;
        }
        Ok(())
    }

    /// Looks at what has ended, and at what should have.
    pub(super) fn collect(&mut self) -> Result<()> {
        while let Some(end) = self.user.next() {
            self.end(end);
        }
        let now = self.context.common.schedule.now();
        for (token, request) in &self.open {
            let limit = request.issued + self.time_limit();
            let slot = self.context.slot;
            assert!(
                now <= limit,
                "memory worker {slot}: request {token} does not end"
            );
        }
        self.context.check_alive()
    }

    /// How long a request may take.
    fn time_limit(&self) -> u64 {
        let limits = &self.context.common.settings.limits;
        self.context.of.times * (REQUEST_TIMEOUT + SLACK) + limits.peer_timeout
    }

    /// How long servers that were killed may go unnoticed, and are away.
    pub(super) fn unnoticed(&self) -> u64 {
        OUTAGE + self.context.of.times * 4 * SERVER_TIMEOUT
    }

    fn end(&mut self, end: End) {
        let slot = self.context.slot;
        let End {
            token,
            result,
            page,
            at,
        } = end;
        let request = self.open.remove(&token);
        let request = request.unwrap_or_else(|| panic!("request {token} ends twice"));
        let took = at - request.issued;
        let schedule = &self.context.common.schedule;
        trace!(
            schedule,
            "memory worker {slot}: request {token}: {result:?}"
        );
        assert!(took <= self.time_limit(), "request {token} takes {took} ns");
        match request.what {
            What::Write(pending) => self.blocks.written(pending, result.is_ok()),
            What::Read(read) if result.is_ok() => self.blocks.returned(read, content(&page)),
            What::Read(_) => {}
        }
        match result {
            Ok(()) => lock(&self.context.of.serving).requests += 1,
            Err(failure) => {
                let careful = self.context.of.careful;
                assert!(!careful, "memory worker {slot}: request {token}: {failure}");
                self.failures.push(failure);
            }
        }
        self.pages.push(page);
    }

    /// Waits until something has ended, or a little.
    fn wait(&mut self) -> Result<()> {
        let schedule = &self.context.common.schedule;
        if !self.user.has_some() {
            schedule.wait(Some(&self.user.signal), Some(schedule.now() + LOOK));
        }
        self.collect()
    }

    /// Waits until nothing is under way.
    pub(super) fn wait_for_all(&mut self) -> Result<()> {
        while !self.open.is_empty() {
            self.wait()?;
        }
        Ok(())
    }

    /// Returns true if each block has all its replicas, and all servers are there.
    pub(super) fn is_whole(&self) -> bool {
        let Some(volume) = &self.volume else {
            return false;
        };
        let status = volume.status();
        let servers = self.context.common.settings.options.nodes;
        let mut servers = (0..servers).map(|index| volume.server(index));
        let is_live = |server: Option<_>| {
            server.is_some_and(|it: qnic_driver::remote_memory::ServerStatus| {
                it.state == ServerState::Live && !it.leaving
            })
        };
        status.state == ClientState::Active
            && !status.repair.running
            && status.repair.missing == 0
            && servers.all(is_live)
    }

    /// Kills servers now and then, if the volume can do without.
    fn kill_some(&mut self) {
        let now = self.context.common.schedule.now();
        if now >= self.quiet_until && self.is_whole() && self.context.common.schedule.chance(300) {
            self.kill_servers();
        }
    }

    /// Kills one server less than each block has.
    pub(super) fn kill_servers(&mut self) {
        let common = &self.context.common;
        let first = common.settings.rdma_workers;
        let mut servers: Vec<_> = (first..first + common.settings.options.nodes).collect();
        for _ in 1..self.context.of.replicas {
            let slot = servers.swap_remove(common.schedule.below(servers.len()));
            let server = lock(&common.slots)[slot];
            if server.state != SlotState::Empty {
                trace!(common.schedule, "fault: memory worker {slot} is killed");
                common.schedule.kill(server.task);
            }
        }
        self.quiet_until = common.schedule.now() + self.unnoticed();
    }
}
