//! Mutations of inputs from a seed: the same on every machine.

use fastrand::Rng;

/// Most mutations of one input.
const MOST: usize = 6;

/// Length of inputs that are made from nothing, in bytes.
const FRESH: usize = 400;

/// Makes inputs from inputs.
#[derive(Debug)]
pub struct Mutator {
    random: Rng,
    longest: usize,
}

impl Mutator {
    /// A mutator whose inputs have at most so many bytes.
    pub fn new(seed: u64, longest: usize) -> Self {
        Mutator {
            random: Rng::with_seed(seed),
            longest,
        }
    }

    /// Another input: one of these mutated, two of them joined, or sometimes bytes of chance.
    pub fn next(&mut self, from: &[&[u8]]) -> Vec<u8> {
        let random = &mut self.random;
        let mut input = match random.choice(from) {
            Some(input) if random.u8(..) >= 32 => input.to_vec(),
            _ => {
                let length = random.usize(..=FRESH.min(self.longest));
                std::iter::repeat_with(|| random.u8(..))
                    .take(length)
                    .collect()
            }
        };
        if let Some(other) = random.choice(from).filter(|_| random.u8(..) < 40) {
            let (keep, skip) = (random.usize(..=input.len()), random.usize(..=other.len()));
            input.truncate(keep);
            input.extend_from_slice(&other[skip..]);
        }
        for _ in 0..self.random.usize(1..=MOST) {
            self.mutate(&mut input);
        }
        input.truncate(self.longest);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        if input.is_empty() {
            input.push(random.u8(..));
            return;
        }
        let at = random.usize(..input.len());
        let count = random.usize(1..=16).min(input.len() - at);
        match random.u8(..8) {
            0 => input[at] ^= 1 << random.u8(..8),
            1 => input[at] = random.u8(..),
            2 => input[at] = input[at].wrapping_add(random.u8(..9)).wrapping_sub(4),
            3 => input[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
            4 => drop(input.drain(at..at + count)),
            5 => {
                let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                    .take(count)
                    .collect();
                drop(input.splice(at..at, bytes));
            }
            6 => {
                let bytes = input[at..at + count].to_vec();
                let to = random.usize(..=input.len());
                drop(input.splice(to..to, bytes));
            }
            _ => input[at..at + count].fill_with(|| random.u8(..)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_depend_on_the_seed_alone_and_are_bounded() {
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, 50);
            let from: [&[u8]; 2] = [&[1; 40], &[]];
            (0..1000).map(|_| mutator.next(&from)).collect::<Vec<_>>()
        };
        let first = inputs(1);
        assert_eq!(first, inputs(1));
        assert_ne!(first, inputs(2));
        assert!(first.iter().all(|input| input.len() <= 50));
    }
}
