//! What a campaign is made of, and the chance that decides.

/// Weights of what can happen in a step.
#[derive(Debug, Clone)]
pub(crate) struct Mix {
    pub(crate) nodes: u16,
    pub(crate) processes: usize,
    pub(crate) frames: u64,
    pub(crate) issue: u64,
    pub(crate) poll: u64,
    pub(crate) evict: u64,
    pub(crate) answer: u64,
    pub(crate) advance: u64,
    pub(crate) unavailable: u64,
    pub(crate) revoke: u64,
    pub(crate) kill: u64,
    pub(crate) reset: u64,
    /// Frames lost, and doubled, of 1,000; `None`: the wire is perfect.
    pub(crate) loss: Option<u64>,
}

impl Mix {
    pub(crate) fn memory_pressure() -> Self {
        Mix {
            nodes: 3,
            processes: 5,
            frames: 64,
            issue: 30,
            poll: 40,
            evict: 20,
            answer: 20,
            advance: 5,
            unavailable: 0,
            revoke: 0,
            kill: 0,
            reset: 0,
            loss: None,
        }
    }

    /// The same on a wire that loses and doubles so many of 1,000 frames, and
    /// reorders them.
    pub(crate) fn lossy(self, loss: u64) -> Self {
        Mix {
            advance: 20,
            loss: Some(loss),
            ..self
        }
    }

    pub(crate) fn disturbances() -> Self {
        Mix {
            nodes: 4,
            processes: 6,
            frames: 256,
            unavailable: 2,
            revoke: 2,
            kill: 2,
            reset: 1,
            ..Self::memory_pressure()
        }
    }
}

/// A sequence of numbers that a seed decides.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
