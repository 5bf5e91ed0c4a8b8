//! Counters: tables of names and values that the other sides discover at run time.
//!
//! What the NIC, the driver or a link counts stands in one table of its own, declared with
//! [`counters!`](crate::counters!): a line has the metric's name, kind and meaning, and the fields
//! that count it. Each user of counters reads that table, or asks for a page of it:
//!
//! ```text
//!  program                            driver                         NIC
//!  COUNTERS: source, first ─────────► own table, or
//!                                     Query: first ────────────────► its table
//!  total, up to 15 (name, value) ◄─── page ◄──────────────────────── page
//! ```
//!
//! No layout contains a counter's name, so a new counter changes no layout and no version: programs
//! and drivers that are older than the counter show it by its name. They ask for pages until they
//! have all that the other side has, or [`MAX_COUNTERS`]. Each page is read at a time of its own.
//!
//! A [`CounterPage`]:
//! ```text
//!      0                4                8
//!   0  | total          | reserved       |
//!   8  | name                            |  Counter first
//!  32  | value                           |
//!  40  | name                            |  Counter first + 1
//!      | …                               |  … 488
//! ```

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;

use zerocopy::little_endian::{U32, U64};

/// Longest name of a counter in bytes.
pub const NAME_BYTES: usize = 24;

/// Most counters of a table.
pub const MAX_COUNTERS: usize = 256;

/// Counters in a page.
pub const PAGE_COUNTERS: usize = 15;

numbered! {
    /// Which table a program asks for.
    pub enum CounterSource: u32 {
        /// What the driver counts.
        Driver = 0,
        /// What the datagram layer of the driver counts (H6). All are zero until a datagram port is
        /// bound.
        Datagrams = 1,
        /// What the NIC holds, and has counted since it was reset.
        Nic = 2,
    }
}

layouts! {
    /// A counter.
    #[bytes(NAME_BYTES + 8)]
    pub struct Counter {
        /// Its name in lower-case ASCII, with zeroes behind it.
        pub name: [u8; NAME_BYTES],
        /// Its value.
        pub value: U64,
    }

    /// A part of a table, from a counter on that the request names.
    #[bytes(8 + PAGE_COUNTERS * (NAME_BYTES + 8))]
    pub struct CounterPage {
        /// Counters of the whole table.
        pub total: U32,
        /// Zero.
        pub reserved: U32,
        /// The counters; those beyond the last one of the table are zero.
        pub counters: [Counter; PAGE_COUNTERS],
    }
}

impl Counter {
    /// Its name. `None` if it has none, or a character other than `a` to `z`, `0` to `9` and `_`.
    pub fn name(&self) -> Option<&str> {
        let length = self.name.iter().position(|byte| *byte == 0);
        let name = &self.name[..length.unwrap_or(NAME_BYTES)];
        let is_valid = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let name = core::str::from_utf8(name).ok()?;
        (!name.is_empty() && name.as_bytes().iter().all(is_valid)).then_some(name)
    }
}

impl CounterPage {
    /// The counters of a table, from number `first` on.
    pub fn of<T: Table>(table: &T, first: u32) -> Self {
        let mut page = CounterPage {
            total: (T::ROWS.len() as u32).into(),
            ..CounterPage::default()
        };
        let rows = table.rows().skip(first as usize);
        for (counter, (row, value)) in page.counters.iter_mut().zip(rows) {
            counter.name[..row.name.len()].copy_from_slice(row.name.as_bytes());
            counter.value = value.into();
        }
        page
    }
}

/// Reads a whole table of another side, a page at a time; `ask` has the number of its first counter.
/// The side is not trusted: at most [`MAX_COUNTERS`] are read, and those without a valid name are
/// left out.
///
/// # Errors
/// Those of `ask`.
pub fn read<E>(
    mut ask: impl FnMut(u32) -> Result<CounterPage, E>,
) -> Result<BTreeMap<String, u64>, E> {
    let mut counters = BTreeMap::new();
    let (mut first, mut total) = (0, 1);
    while first < total {
        let page = ask(first as u32)?;
        total = MAX_COUNTERS.min(page.total.get() as usize);
        let present = page.counters.iter().take(total.saturating_sub(first));
        let named = present.filter_map(|it| Some((it.name()?.to_owned(), it.value.get())));
        counters.extend(named);
        first += PAGE_COUNTERS;
    }
    Ok(counters)
}

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until what it is about starts anew.
    Counter,
    /// It goes up and down.
    Gauge,
}

impl Kind {
    /// Its word in the text that Prometheus reads.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// A line of a table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name among the counters of its table.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The metric that it is a sample of; `_` if Prometheus does not get it.
    pub metric: &'static str,
    /// The labels of that sample, besides those that all of its table have.
    pub labels: &'static [(&'static str, &'static str)],
    /// What the metric means, in a sentence.
    pub help: &'static str,
}

impl Row {
    /// Returns true if it is a sample of a metric.
    pub fn is_metric(&self) -> bool {
        self.metric != "_"
    }
}

/// A structure of counters; [`counters!`](crate::counters!) implements it.
pub trait Table {
    /// Its lines.
    const ROWS: &'static [Row];

    /// Each line, and its value.
    fn rows(&self) -> impl Iterator<Item = (&'static Row, u64)>;

    /// Adds the values of `other`.
    fn add(&mut self, other: &Self);
}

/// A number that counts.
pub trait Count {
    /// Its value.
    fn value(&self) -> u64;

    /// Adds a number to it.
    fn add(&mut self, number: u64);
}

impl Count for u64 {
    fn value(&self) -> u64 {
        *self
    }

    fn add(&mut self, number: u64) {
        *self += number;
    }
}

/// Declares a structure of counters and its [`Table`](crate::counters::Table).
///
/// A line is a metric: kind, name, meaning, and the fields that are its samples, with their labels if
/// there are several. The metric `_` is not shown to Prometheus. Fields that are no numbers may stand in
/// braces before the lines.
///
/// ```
/// qnic_abi::counters! {
///     /// What a door counts.
///     #[derive(Debug, Default)]
///     pub struct Door: u64 {
///         { pub colour: &'static str, }
///         Counter door_openings_total "Times that it was opened." = openings;
///         Counter door_passages_total "Passages, by direction." =
///             entered { direction: "in" }, left { direction: "out" };
///     }
/// }
/// let mut door = Door::default();
/// door.entered += 1;
/// let rows: Vec<_> = qnic_abi::counters::Table::rows(&door).collect();
/// assert_eq!((rows[1].0.name, rows[1].1), ("entered", 1));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident: $number:ty {
            $({$($(#[$other_attribute:meta])* $other_visibility:vis $other:ident: $other_type:ty,)*})?
            $($kind:ident $metric:tt $help:literal =
                $($field:ident $({$($label:ident: $value:literal),+})?),+;)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($($(#[$other_attribute])* $other_visibility $other: $other_type,)*)?
            $($(#[doc = $help] $visibility $field: $number,)+)*
        }

        impl $crate::counters::Table for $name {
            const ROWS: &'static [$crate::counters::Row] = &[$($($crate::counters::Row {
                name: stringify!($field),
                kind: $crate::counters::Kind::$kind,
                metric: stringify!($metric),
                labels: &[$($((stringify!($label), $value)),+)?],
                help: $help,
            },)+)*];

            fn rows(&self) -> impl Iterator<Item = (&'static $crate::counters::Row, u64)> {
                let values = [$($($crate::counters::Count::value(&self.$field),)+)*];
                Self::ROWS.iter().zip(values)
            }

            fn add(&mut self, other: &Self) {
                $($($crate::counters::Count::add(
                    &mut self.$field,
                    $crate::counters::Count::value(&other.$field),
                );)+)*
            }
        }

        const _: () = {
            assert!(<$name as $crate::counters::Table>::ROWS.len() <= $crate::counters::MAX_COUNTERS);
            $($(assert!(stringify!($field).len() <= $crate::counters::NAME_BYTES);)+)*
        };
    };
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    crate::counters! {
        #[derive(Debug, Default)]
        struct Few: u64 {
            Counter few_a_total "A." = a;
            Gauge few_b "B." = b { x: "1" }, c { x: "2" };
        }
    }

    fn named(name: &[u8]) -> Counter {
        let mut counter = Counter::default();
        counter.name[..name.len()].copy_from_slice(name);
        counter
    }

    #[test]
    fn a_table_is_read_as_it_is() {
        let mut few = Few { a: 1, b: 2, c: 3 };
        few.add(&Few { a: 10, b: 0, c: 0 });
        let read = read(|first| Ok::<_, ()>(CounterPage::of(&few, first))).unwrap();
        let found: Vec<_> = read
            .iter()
            .map(|(name, value)| (&name[..], *value))
            .collect();
        assert_eq!(found, [("a", 11), ("b", 2), ("c", 3)]);
        assert_eq!(CounterPage::of(&few, 2).counters[0].name(), Some("c"));
        assert_eq!(CounterPage::of(&few, u32::MAX).counters[0].name(), None);
        assert_eq!(Few::ROWS[2].labels, [("x", "2")]);
    }

    /// What a hostile side can say: too many counters, and names that are none.
    #[test]
    fn what_is_read_is_bounded_and_has_names() {
        let mut page = CounterPage {
            total: u32::MAX.into(),
            ..CounterPage::default()
        };
        page.counters[1] = named(b"Upper");
        page.counters[2] = named(b"\xff\x1b[0m");
        page.counters[3] = named(b"aaaaaaaaaaaaaaaaaaaaaaaa");
        page.counters[4] = named(b"a\0b");
        let mut asked = 0;
        let found = read(|_| {
            asked += 1;
            Ok::<_, ()>(page)
        });
        assert_eq!(asked, MAX_COUNTERS.div_ceil(PAGE_COUNTERS));
        let names: Vec<_> = found.unwrap().into_keys().collect();
        assert_eq!(names, ["a", "aaaaaaaaaaaaaaaaaaaaaaaa"]);
    }
}
