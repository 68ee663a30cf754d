//! Structures that are only `u64` fields at fixed offsets.

/// Declares a struct of `u64` fields with `decode` and `encode`.
macro_rules! word_struct {
    (
        $(#[$doc:meta])*
        pub struct $name:ident[$size:expr] as $what:literal {
            $($(#[$fdoc:meta])* $field:ident @ $off:expr,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: u64,)*
        }

        impl $name {
            /// Encoded bytes.
            pub const SIZE: usize = $size;

            /// Decodes the structure.
            ///
            /// # Errors
            /// Only when `buf` is too short.
            pub fn decode(buf: &[u8]) -> $crate::Result<Self> {
                $crate::bytes::need(buf, Self::SIZE, $what)?;
                Ok(Self { $($field: $crate::bytes::u64_at(buf, $off),)* })
            }

            /// Encodes the structure.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let mut out = vec![0; Self::SIZE];
                $($crate::bytes::put_u64(&mut out, $off, self.$field);)*
                out
            }
        }
    };
}

pub(crate) use word_struct;
