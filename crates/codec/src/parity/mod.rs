//! Parity of raidz and draid: up to three rows over the data columns of a stripe, and lost columns back from them.
//!
//! ```text
//! P = d0 + d1 + ...      Q = 2^(k-1) d0 + 2^(k-2) d1 + ...      R = 4^(k-1) d0 + 4^(k-2) d1 + ...
//! ```
//! for `k` data columns, byte by byte, in the field of [`field`]; columns shorter than the parity count as extended by
//! zeros. Any lost data columns, as many as rows of parity are left, are the solution of a linear system.
//! Source of the code: format page on raidz, checked against pools written by OpenZFS.
//!
//! Guarantees: no I/O, no state; the vector forms give the bytes of the portable twin.
//! What it does not know: devices, sectors, which column is good.

mod field;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use field::Matrix;

/// Most rows of parity.
pub const ROWS_MAX: usize = 3;

/// More columns are lost than rows of parity are left, or a buffer has the wrong length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too few columns are left to reconstruct the others")]
pub struct NotEnough;

/// Which form of the inner loops is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with the Galois field instructions.
    #[cfg(target_arch = "x86_64")]
    Gfni,
}

impl Form {
    /// Returns the best form the processor has.
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if Self::Gfni.is_available() {
                return Self::Gfni;
            }
            if Self::Avx2.is_available() {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => {
                std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("gfni")
            }
        }
    }

    /// Writes the parity of columns that are all as long as the rows, or empty (zeros).
    fn generate(self, data: &[&[u8]], rows: &mut [&mut [u8]]) {
        match self {
            Self::Portable => portable::generate(data, rows, 0),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::generate_avx2(data, rows),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => x86::generate_gfni(data, rows),
        }
    }

    /// Writes sums of products of the terms; all of them and all of `out` are as long.
    fn combine(self, terms: &[Term], out: &mut [&mut [u8]]) {
        match self {
            Self::Portable => portable::combine(terms, out, 0),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::combine_avx2(terms, out),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => x86::combine_gfni(terms, out),
        }
    }
}

/// What is left of a stripe's column, and what it is multiplied with in the sum for each lost one.
struct Term<'a> {
    bytes: &'a [u8],
    factors: [u8; ROWS_MAX],
}

/// Computes the rows of parity (P, then Q, then R) of the data columns, in column order. No column is longer than the
/// rows; shorter ones count as extended by zeros.
///
/// # Panics
/// When there are no or more than three rows, rows differ in length, or a column is longer than they are.
pub fn generate(data: &[&[u8]], rows: &mut [&mut [u8]]) {
    generate_as(Form::best(), data, rows);
}

fn generate_as(form: Form, data: &[&[u8]], rows: &mut [&mut [u8]]) {
    assert!(
        (1..=ROWS_MAX).contains(&rows.len()),
        "one to three rows of parity"
    );
    let len = rows[0].len();
    assert!(
        rows.iter().all(|row| row.len() == len) && data.iter().all(|column| column.len() <= len),
        "no column is longer than the parity"
    );
    // Between the places where columns end every column is there or not.
    let mut ends: Vec<usize> = data.iter().map(|column| column.len()).collect();
    ends.push(len);
    ends.sort_unstable();
    ends.dedup();
    let mut from = 0;
    for to in ends {
        if to == from {
            continue;
        }
        let part: Vec<&[u8]> = data
            .iter()
            .map(|column| column.get(from..to).unwrap_or_default())
            .collect();
        let mut out: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut row[from..to]).collect();
        form.generate(&part, &mut out);
        from = to;
    }
}

/// Computes lost data columns. `data` and `parity` (P, Q, R: as many as the stripe has) hold what is left; `lost` has
/// one buffer for each `None` of `data`, in the same order and as long as that column. Rows of parity have the same
/// length, and no column is longer.
///
/// # Errors
/// [`NotEnough`] when more columns are lost than rows are left, or lengths do not fit; buffers are then undefined.
pub fn reconstruct(
    data: &[Option<&[u8]>],
    parity: &[Option<&[u8]>],
    lost: &mut [&mut [u8]],
) -> Result<(), NotEnough> {
    reconstruct_as(Form::best(), data, parity, lost)
}

fn reconstruct_as(
    form: Form,
    data: &[Option<&[u8]>],
    parity: &[Option<&[u8]>],
    lost: &mut [&mut [u8]],
) -> Result<(), NotEnough> {
    let missing: Vec<usize> = (0..data.len()).filter(|&i| data[i].is_none()).collect();
    if missing.len() != lost.len() || parity.len() > ROWS_MAX {
        return Err(NotEnough);
    }
    let size = missing.len();
    if size == 0 {
        return Ok(());
    }
    let rows: Vec<(usize, &[u8])> = parity
        .iter()
        .enumerate()
        .filter_map(|(row, bytes)| Some((row, (*bytes)?)))
        .take(size)
        .collect();
    let (Some(&(_, first)), true) = (rows.last(), rows.len() == size) else {
        return Err(NotEnough);
    };
    let len = first.len();
    if rows.iter().any(|(_, row)| row.len() != len)
        || data.iter().flatten().any(|column| column.len() > len)
        || lost.iter().any(|column| column.len() > len)
    {
        return Err(NotEnough);
    }
    let mut matrix: Matrix = [[0; 3]; 3];
    for (line, &(row, _)) in rows.iter().enumerate() {
        for (place, &column) in missing.iter().enumerate() {
            matrix[line][place] = field::power_of_two(row * (data.len() - 1 - column));
        }
    }
    let inverse = field::invert(matrix, size).ok_or(NotEnough)?;

    // With the sums of the parity put into the system, a lost column is a sum over all that is left: one pass over the memory.
    let weights = |row: usize, column: usize| field::power_of_two(row * (data.len() - 1 - column));
    let columns = data.iter().enumerate().filter_map(|(column, bytes)| {
        let mut factors = [0; ROWS_MAX];
        for (line, &(row, _)) in rows.iter().enumerate() {
            for (factor, inverse) in factors.iter_mut().zip(&inverse).take(size) {
                *factor ^= field::multiply(inverse[line], weights(row, column));
            }
        }
        Some(Term {
            bytes: (*bytes)?,
            factors,
        })
    });
    let parities = rows.iter().enumerate().map(|(line, (_, bytes))| Term {
        bytes,
        factors: inverse.map(|inverse| inverse[line]),
    });
    combine_as(form, &columns.chain(parities).collect::<Vec<_>>(), lost);
    Ok(())
}

/// Sums where terms and lost columns end at different places.
fn combine_as(form: Form, terms: &[Term], lost: &mut [&mut [u8]]) {
    let mut ends: Vec<usize> = terms.iter().map(|term| term.bytes.len()).collect();
    ends.extend(lost.iter().map(|column| column.len()));
    ends.sort_unstable();
    ends.dedup();
    let mut from = 0;
    for to in ends {
        let wanted: Vec<usize> = (0..lost.len()).filter(|&at| lost[at].len() >= to).collect();
        if to == from || wanted.is_empty() {
            continue;
        }
        let part: Vec<Term> = terms
            .iter()
            .filter_map(|term| {
                let mut factors = [0; ROWS_MAX];
                for (factor, &at) in factors.iter_mut().zip(&wanted) {
                    *factor = term.factors[at];
                }
                let bytes = term.bytes.get(from..to)?;
                Some(Term { bytes, factors })
            })
            .collect();
        let mut out: Vec<&mut [u8]> = lost
            .iter_mut()
            .filter_map(|column| column.get_mut(from..to))
            .collect();
        form.combine(&part, &mut out);
        from = to;
    }
}

#[cfg(test)]
mod tests;
