//! Seeds that once failed. One file each, named by topic and seed, opening with the story of the bug. None yet that
//! needs to be kept apart from the campaign.
