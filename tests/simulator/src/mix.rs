//! What the seeds of a campaign simulate: clusters of one kind, or a mix of them.
//!
//! In a mix, a seed chooses its cluster, too: its number alone says how many nodes there are, and
//! what lies between them. So does the command that repeats it ([`crate::Failure::replay`]).

use std::ops::RangeInclusive;

use crate::settings::Options;

/// What lies between the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Wires that lose, delay, double and corrupt frames, and routes that are cut.
    Lossy,
    /// The wire within a device process ([`Options::lossless`]).
    Lossless,
    /// The same, with an engine for each NIC ([`Options::engines`]).
    Engines,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::Lossy, Mode::Lossless, Mode::Engines];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Lossy => "lossy",
            Mode::Lossless => "lossless",
            Mode::Engines => "engines",
        }
    }

    /// The mode of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// That of a simulation.
    pub fn of(options: &Options) -> Self {
        match (options.lossless, options.engines) {
            (false, _) => Mode::Lossy,
            (true, false) => Mode::Lossless,
            (true, true) => Mode::Engines,
        }
    }
}

/// The simulations that a campaign chooses from; neither range nor list is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix {
    /// How many nodes there are.
    pub nodes: RangeInclusive<usize>,
    /// What lies between them.
    pub modes: Vec<Mode>,
    /// Everything else.
    pub others: Options,
}

impl Mix {
    /// What fresh seeds simulate: 4 to 12 nodes, in all modes, with all faults.
    pub fn fresh() -> Self {
        Mix {
            nodes: 4..=12,
            modes: Mode::ALL.to_vec(),
            others: Options::default(),
        }
    }

    /// The simulation of a seed.
    pub fn of(&self, seed: u64) -> Options {
        // Numbers of their own: the residues of a seed choose its workload, in a cluster of any kind.
        let mut random = fastrand::Rng::with_seed(seed.rotate_left(32));
        let nodes = random.usize(self.nodes.clone());
        let mode = random.choice(&self.modes).copied();
        let mode = mode.unwrap_or(Mode::of(&self.others));
        Options {
            nodes,
            lossless: mode != Mode::Lossy,
            engines: mode == Mode::Engines,
            ..self.others
        }
    }
}

impl From<Options> for Mix {
    /// Every seed has these.
    fn from(options: Options) -> Self {
        Mix {
            nodes: options.nodes..=options.nodes,
            modes: vec![Mode::of(&options)],
            others: options,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn fresh_seeds_meet_every_size_in_every_mode() {
        let mix = Mix::fresh();
        let seen = (0..1000).map(|seed| mix.of(seed));
        let seen: BTreeSet<_> = seen.map(|of| (of.nodes, Mode::of(&of))).collect();
        assert_eq!(seen.len(), 9 * 3);
    }

    #[test]
    fn options_alone_are_no_mix() {
        let options = Options {
            nodes: 7,
            lossless: true,
            engines: true,
            ..Options::default()
        };
        let mix = Mix::from(options);
        assert!((0..100).all(|seed| mix.of(seed) == options));
    }
}
