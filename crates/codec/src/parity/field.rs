//! Arithmetic of the field of 256 elements that raidz parity is computed in: polynomial x^8+x^4+x^3+x^2+1, generator 2.
//!
//! Guarantees: constant tables built at compile time; no element but zero lacks an inverse.

/// The polynomial without its x^8.
const REDUCTION: u8 = 0x1d;

const fn double(x: u8) -> u8 {
    (x << 1) ^ (if x & 0x80 == 0 { 0 } else { REDUCTION })
}

/// Powers of two, twice over, so that a sum of two logarithms needs no reduction.
const EXP: [u8; 512] = {
    let mut table = [0; 512];
    let mut x = 1;
    let mut i = 0;
    while i < 512 {
        table[i] = x;
        x = double(x);
        i += 1;
    }
    table
};

/// Logarithms to base two; that of zero is never used.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0_u8;
    while i < 255 {
        table[EXP[i as usize] as usize] = i;
        i += 1;
    }
    table
};

/// Returns 2 to the power `exponent`.
pub(super) fn power_of_two(exponent: usize) -> u8 {
    EXP[exponent % 255]
}

/// Returns the product.
pub(super) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// Returns what `a`, which is not zero, must be multiplied with to give one.
fn inverse(a: u8) -> u8 {
    debug_assert!(a != 0, "zero has no inverse");
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// A square matrix of up to three rows; only the first `size` rows and columns count.
pub(super) type Matrix = [[u8; 3]; 3];

/// Returns the inverse of a matrix, `None` if it has none.
pub(super) fn invert(mut matrix: Matrix, size: usize) -> Option<Matrix> {
    let mut result: Matrix = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    for column in 0..size {
        let pivot = (column..size).find(|&row| matrix[row][column] != 0)?;
        matrix.swap(pivot, column);
        result.swap(pivot, column);
        let scale = inverse(matrix[column][column]);
        for i in 0..size {
            matrix[column][i] = multiply(matrix[column][i], scale);
            result[column][i] = multiply(result[column][i], scale);
        }
        let (pivot_row, pivot_result) = (matrix[column], result[column]);
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row][column];
            for i in 0..size {
                matrix[row][i] ^= multiply(factor, pivot_row[i]);
                result[row][i] ^= multiply(factor, pivot_result[i]);
            }
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication by its definition: shift, add, reduce.
    fn slow(a: u8, b: u8) -> u8 {
        let (mut sum, mut a) = (0, a);
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                sum ^= a;
            }
            a = double(a);
        }
        sum
    }

    #[test]
    fn tables_agree_with_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), slow(a, b), "{a} * {b}");
            }
            if a != 0 {
                assert_eq!(multiply(a, inverse(a)), 1, "1 / {a}");
            }
        }
    }
}
