//! Which nodes are joined by a link, and the route between two nodes (Q16).
//!
//! ```text
//!   mesh            ring             star             torus, 3 columns
//!   0 ─── 1         0 ── 1           1   2            0 ── 1 ── 2 ─┐(to 0)
//!   │ ╲ ╱ │         │    │            ╲ ╱             │    │    │
//!   │ ╱ ╲ │         3 ── 2             0 (hub)        3 ── 4 ── 5
//!   3 ─── 2                            │              │    │    │ (to 0, 1, 2)
//!                                      3
//! ```
//!
//! A place is an index from 0. On a torus with *c* columns, place *i* has the coordinates
//! [*i* mod *c*, *i* div *c*], column and row; a route goes along the row first, then along the
//! column, each in the shorter direction (dimension-order routing, which is free of deadlock).
//! A ring is a torus with one row, and its places have one coordinate. Nodes take places in the
//! order of their numbers, unless each is given its coordinates ([`Topology::place`]).

use serde::{Deserialize, Serialize};

/// How nodes are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// Each node with each other node.
    #[default]
    Mesh,
    /// Each node with its two neighbours.
    Ring,
    /// Each node with the hub.
    Star {
        /// Index of the hub.
        hub: usize,
    },
    /// Rows and columns whose ends are joined.
    Torus {
        /// Nodes in a row.
        columns: usize,
    },
}

/// The shape alone, as configuration files name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// [`Topology::Mesh`].
    #[default]
    Mesh,
    /// [`Topology::Ring`].
    Ring,
    /// [`Topology::Star`].
    Star,
    /// [`Topology::Torus`].
    Torus,
}

impl Topology {
    /// Checks that this topology can join `count` nodes.
    ///
    /// # Errors
    /// Returns a sentence that says why it cannot.
    pub fn check(&self, count: usize) -> Result<(), String> {
        match *self {
            Topology::Star { hub } if hub >= count => {
                Err(format!("the hub is node {hub} of {count}, counted from 0"))
            }
            Topology::Torus { columns } if columns == 0 || count % columns != 0 => Err(format!(
                "{count} nodes do not fill rows of {columns}: the columns must divide the nodes"
            )),
            _ => Ok(()),
        }
    }

    /// The place with these coordinates, in a network of `count` nodes.
    ///
    /// # Errors
    /// Returns a sentence that says what is wrong with them.
    pub fn place(&self, count: usize, coordinates: &[usize]) -> Result<usize, String> {
        let (form, sizes) = match *self {
            Topology::Ring => ("[place]", vec![count]),
            Topology::Torus { columns } => ("[column, row]", vec![columns, count / columns]),
            Topology::Mesh | Topology::Star { .. } => {
                return Err("only a ring and a torus have coordinates: leave them out".to_owned())
            }
        };
        if coordinates.len() != sizes.len() {
            let found = coordinates.len();
            return Err(format!("expected {form}, found {found} coordinates"));
        }
        let outside = |(at, size): (&usize, &usize)| at >= size;
        if coordinates.iter().zip(&sizes).any(outside) {
            let last: Vec<_> = sizes.iter().map(|size| size.saturating_sub(1)).collect();
            return Err(format!(
                "expected {form} from {:?} to {last:?}, found {coordinates:?}",
                vec![0; last.len()]
            ));
        }
        Ok(coordinates[0] + sizes[0] * coordinates.get(1).unwrap_or(&0))
    }

    /// The indices on the route from `from` to `to`, without `from`; empty if they are the
    /// same.
    ///
    /// The topology was [checked](Self::check) for `count`, and both indices exist.
    pub fn route(&self, count: usize, from: usize, to: usize) -> Vec<usize> {
        match *self {
            _ if from == to => Vec::new(),
            Topology::Mesh => vec![to],
            Topology::Star { hub } if from == hub || to == hub => vec![to],
            Topology::Star { hub } => vec![hub, to],
            Topology::Ring => around(count, from, to),
            Topology::Torus { columns } => {
                let row = from / columns * columns;
                let along = around(columns, from % columns, to % columns);
                let across = around(count / columns, from / columns, to / columns);
                let along = along.into_iter().map(|column| row + column);
                let across = across.into_iter().map(|row| row * columns + to % columns);
                along.chain(across).collect()
            }
        }
    }

    /// Returns true if two nodes are joined by one link.
    pub fn joins(&self, count: usize, from: usize, to: usize) -> bool {
        from != to && self.route(count, from, to).len() == 1
    }
}

/// The route around a ring in the shorter direction; upwards if both are equal.
fn around(count: usize, from: usize, to: usize) -> Vec<usize> {
    let up = (to + count - from) % count;
    let steps = up.min(count - up);
    (1..=steps)
        .map(|step| match up <= count - up {
            true => (from + step) % count,
            false => (from + count - step) % count,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Routes take one dimension of a torus after the other (Q16).
    #[test]
    fn routes_are_those_of_the_picture() {
        let torus = Topology::Torus { columns: 3 };
        assert_eq!(torus.route(9, 0, 2), [2]);
        assert_eq!(torus.route(9, 0, 4), [1, 4]);
        assert_eq!(torus.route(9, 1, 8), [2, 8]);
        assert_eq!(Topology::Ring.route(5, 0, 3), [4, 3]);
        assert_eq!(Topology::Ring.route(4, 0, 2), [1, 2]);
        assert_eq!(Topology::Star { hub: 0 }.route(4, 1, 3), [0, 3]);
        assert_eq!(Topology::Mesh.route(4, 1, 3), [3]);
        assert!(Topology::Mesh.joins(4, 1, 3) && !Topology::Ring.joins(4, 1, 3));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Topology::Torus { columns: 3 }.check(8).is_err());
        assert!(Topology::Torus { columns: 0 }.check(8).is_err());
        assert!(Topology::Star { hub: 4 }.check(4).is_err());
        assert!(Topology::Torus { columns: 4 }.check(8).is_ok());
    }

    #[test]
    fn coordinates_are_those_of_the_picture() {
        let torus = Topology::Torus { columns: 3 };
        assert_eq!(torus.place(6, &[1, 1]), Ok(4));
        assert_eq!(Topology::Ring.place(4, &[3]), Ok(3));
        for (topology, coordinates, part) in [
            (torus, &[1][..], "expected [column, row], found 1"),
            (torus, &[0, 2], "from [0, 0] to [2, 1], found [0, 2]"),
            (torus, &[3, 0], "found [3, 0]"),
            (Topology::Ring, &[6], "expected [place] from [0] to [5]"),
            (Topology::Ring, &[0, 0], "found 2 coordinates"),
            (Topology::Mesh, &[0], "leave them out"),
            (Topology::Star { hub: 0 }, &[0], "leave them out"),
        ] {
            let error = topology.place(6, coordinates).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    fn topology(kind: u8, rows: usize, columns: usize) -> (Topology, usize) {
        let count = rows * columns;
        let topology = match kind {
            0 => Topology::Mesh,
            1 => Topology::Ring,
            2 => Topology::Star { hub: count / 2 },
            _ => Topology::Torus { columns },
        };
        (topology, count)
    }

    proptest! {
        /// Every route ends at its destination, takes only links that exist, visits no
        /// node twice, and is no longer than both halves of a torus.
        #[test]
        fn routes_arrive(kind in 0u8..4, rows in 1usize..6, columns in 1usize..6, a: usize, b: usize) {
            let (topology, count) = topology(kind, rows, columns);
            let (from, to) = (a % count, b % count);
            let route = topology.route(count, from, to);
            prop_assert!(topology.check(count).is_ok());
            prop_assert_eq!(route.last().copied().unwrap_or(from), to);
            let mut at = from;
            for next in &route {
                prop_assert!(topology.joins(count, at, *next));
                at = *next;
            }
            let mut seen = route.clone();
            seen.push(from);
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), route.len() + 1);
            if let Topology::Torus { .. } = topology {
                prop_assert!(route.len() <= rows / 2 + columns / 2);
            }
        }
    }
}
