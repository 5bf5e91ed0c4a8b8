//! What a cluster file turns on: `true`, `false`, or a table that says more of it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOff<T> {
    /// `false`.
    Off,
    /// `true`, or a table with what is not as usual.
    On(T),
}

impl<T: Default> OnOff<T> {
    /// On, with everything as usual.
    pub fn on() -> Self {
        Self::On(T::default())
    }
}

impl<T> OnOff<T> {
    pub(crate) fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }
}

impl<T: Serialize + Default + PartialEq> Serialize for OnOff<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::On(usual) if *usual == T::default() => serializer.serialize_bool(true),
            Self::On(table) => table.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for OnOff<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Either<T> {
            type Value = OnOff<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("true, false or a table")
            }

            fn visit_bool<E>(self, on: bool) -> Result<OnOff<T>, E> {
                Ok(if on { OnOff::on() } else { OnOff::Off })
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<OnOff<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(table)).map(OnOff::On)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}
