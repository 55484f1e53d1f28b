//! Where things are: named places, stations, offices, and the points that the service does not cover.
//!
//! The tables hold true coordinates: places and their time zones from GeoNames (CC BY 4.0), stations from the public
//! list of airports, offices as the National Weather Service names them. What the weather is there is made up
//! ([`super::weather`]).

use std::collections::HashMap;
use std::sync::OnceLock;

/// A city that questions are asked about.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// As people write it, `Duluth`.
    pub name: String,
    /// Two letters, `MN`.
    pub state: String,
    /// Degrees north, two decimals.
    pub latitude: f64,
    /// Degrees east, two decimals.
    pub longitude: f64,
    /// Name in the tz database.
    pub time_zone: String,
}

impl Place {
    /// `Duluth, MN`, as questions and answers name it.
    pub fn label(&self) -> String {
        format!("{}, {}", self.name, self.state)
    }
}

/// An observing station at an airport.
#[derive(Debug, Clone, PartialEq)]
pub struct Station {
    /// Four letters, `KDLH`.
    pub id: String,
    /// `Duluth International Airport`.
    pub name: String,
    /// Two letters.
    pub state: String,
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
    /// Name in the tz database.
    pub time_zone: String,
}

/// A forecast office, which owns a grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Office {
    /// Three letters, `DLH`.
    pub id: String,
    /// The city it is named after.
    pub city: String,
    /// Two letters.
    pub state: String,
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
}

/// A state with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Two letters.
    pub code: String,
    /// In full.
    pub name: String,
}

/// A city that the service does not cover.
#[derive(Debug, Clone, PartialEq)]
pub struct AbroadPlace {
    /// `Toronto`.
    pub name: String,
    /// `Canada`.
    pub country: String,
    /// Degrees north, two decimals.
    pub latitude: f64,
    /// Degrees east, two decimals.
    pub longitude: f64,
}

impl AbroadPlace {
    /// `Toronto, Canada`.
    pub fn label(&self) -> String {
        format!("{}, {}", self.name, self.country)
    }
}

/// What the service knows about a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Coverage {
    /// Land: the index into [`Geography::places`] of the nearest place, and its distance in km.
    Land {
        /// Index of the nearest place.
        place: usize,
        /// How far away it is.
        distance_km: f64,
    },
    /// Sea: a grid cell without land forecasts.
    Sea,
    /// Nothing at all.
    Outside,
}

/// A cell of an office's grid, 2.5 km wide.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GridCell {
    /// Three letters.
    pub office: String,
    /// Cells east of the office's origin.
    pub x: i64,
    /// Cells north of the office's origin.
    pub y: i64,
}

/// The tables, read once.
#[derive(Debug)]
pub struct Geography {
    /// In the order of state and size.
    pub places: Vec<Place>,
    /// In the order of their ids.
    pub stations: Vec<Station>,
    /// In the order of their states.
    pub offices: Vec<Office>,
    /// The fifty states and the District of Columbia, by code.
    pub states: Vec<State>,
    /// Cities of other countries.
    pub abroad: Vec<AbroadPlace>,
    /// Points at sea, degrees north and east.
    pub sea: Vec<(f64, f64)>,
    station_by_id: HashMap<String, usize>,
}

const PLACES: &str = include_str!("geography/places.tsv");
const STATIONS: &str = include_str!("geography/stations.tsv");
const OFFICES: &str = include_str!("geography/offices.tsv");
const STATES: &str = include_str!("geography/states.tsv");
const ABROAD: &str = include_str!("geography/abroad.tsv");
const SEA: &str = include_str!("geography/sea.tsv");

/// Area codes of the service that are not states: territories, then marine areas.
pub const OTHER_AREAS: [&str; 19] = [
    "PR", "GU", "AS", "VI", "MP", "AM", "AN", "GM", "LC", "LE", "LH", "LM", "LO", "LS", "PH", "PK", "PM", "PS", "PZ",
];

/// A point farther than this from every place is not covered.
const COVERAGE_KM: f64 = 320.0;
/// The width of a grid cell.
const CELL_KM: f64 = 2.5;
/// Cells between a grid's corner and its office.
const OFFICE_OFFSET: i64 = 100;
const KM_PER_DEGREE: f64 = 111.32;

/// The tables of this build.
pub fn geography() -> &'static Geography {
    static GEOGRAPHY: OnceLock<Geography> = OnceLock::new();
    GEOGRAPHY.get_or_init(Geography::read)
}

impl Geography {
    fn read() -> Self {
        let stations: Vec<Station> = rows(STATIONS, |field| {
            Some(Station {
                id: field(0)?,
                name: field(1)?,
                state: field(2)?,
                latitude: field(3)?.parse().ok()?,
                longitude: field(4)?.parse().ok()?,
                time_zone: field(5)?,
            })
        });
        let station_by_id = stations
            .iter()
            .enumerate()
            .map(|(index, station)| (station.id.clone(), index))
            .collect();
        Self {
            places: rows(PLACES, |field| {
                Some(Place {
                    name: field(0)?,
                    state: field(1)?,
                    latitude: field(2)?.parse().ok()?,
                    longitude: field(3)?.parse().ok()?,
                    time_zone: field(4)?,
                })
            }),
            stations,
            offices: rows(OFFICES, |field| {
                Some(Office {
                    id: field(0)?,
                    city: field(1)?,
                    state: field(2)?,
                    latitude: field(3)?.parse().ok()?,
                    longitude: field(4)?.parse().ok()?,
                })
            }),
            states: rows(STATES, |field| {
                Some(State {
                    code: field(0)?,
                    name: field(1)?,
                })
            }),
            abroad: rows(ABROAD, |field| {
                Some(AbroadPlace {
                    name: field(0)?,
                    country: field(1)?,
                    latitude: field(2)?.parse().ok()?,
                    longitude: field(3)?.parse().ok()?,
                })
            }),
            sea: rows(SEA, |field| Some((field(1)?.parse().ok()?, field(2)?.parse().ok()?))),
            station_by_id,
        }
    }

    /// The station with this id, in capitals.
    pub fn station(&self, id: &str) -> Option<&Station> {
        self.station_by_id.get(id).and_then(|index| self.stations.get(*index))
    }

    /// The state with this two-letter code, in capitals.
    pub fn state(&self, code: &str) -> Option<&State> {
        self.states.iter().find(|state| state.code == code)
    }

    /// Up to `limit` stations with their distance in km, nearest first.
    pub fn nearest_stations(&self, latitude: f64, longitude: f64, limit: usize) -> Vec<(&Station, f64)> {
        let mut stations: Vec<(&Station, f64)> = self
            .stations
            .iter()
            .map(|station| {
                (
                    station,
                    distance_km(latitude, longitude, station.latitude, station.longitude),
                )
            })
            .collect();
        stations.sort_by(|left, right| left.1.total_cmp(&right.1).then_with(|| left.0.id.cmp(&right.0.id)));
        stations.truncate(limit);
        stations
    }

    /// Whether the service covers a point: the nearest of all known points decides.
    pub fn coverage(&self, latitude: f64, longitude: f64) -> Coverage {
        let to = |other_latitude, other_longitude| distance_km(latitude, longitude, other_latitude, other_longitude);
        let nearest = self
            .places
            .iter()
            .map(|place| to(place.latitude, place.longitude))
            .enumerate()
            .min_by(|left, right| left.1.total_cmp(&right.1));
        let abroad = self
            .abroad
            .iter()
            .map(|place| to(place.latitude, place.longitude))
            .fold(f64::INFINITY, f64::min);
        let sea = self
            .sea
            .iter()
            .map(|point| to(point.0, point.1))
            .fold(f64::INFINITY, f64::min);
        match nearest {
            Some((place, distance_km)) if distance_km <= abroad.min(sea) && distance_km <= COVERAGE_KM => {
                Coverage::Land { place, distance_km }
            }
            _ if sea < abroad && sea <= COVERAGE_KM => Coverage::Sea,
            _ => Coverage::Outside,
        }
    }

    /// The cell of a point, in the grid of the nearest office.
    pub fn grid_cell(&self, latitude: f64, longitude: f64) -> Option<(GridCell, &Office)> {
        let office = self.offices.iter().min_by(|left, right| {
            let left = distance_km(latitude, longitude, left.latitude, left.longitude);
            let right = distance_km(latitude, longitude, right.latitude, right.longitude);
            left.total_cmp(&right)
        })?;
        let east_km = (longitude - office.longitude) * office.latitude.to_radians().cos() * KM_PER_DEGREE;
        let north_km = (latitude - office.latitude) * KM_PER_DEGREE;
        let cell = |km: f64| (km / CELL_KM).round() as i64 + OFFICE_OFFSET;
        Some((
            GridCell {
                office: office.id.clone(),
                x: cell(east_km),
                y: cell(north_km),
            },
            office,
        ))
    }

    /// The middle of a cell, degrees north and east; `None` for an office that does not exist.
    pub fn cell_centre(&self, cell: &GridCell) -> Option<(f64, f64)> {
        let office = self.offices.iter().find(|office| office.id == cell.office)?;
        let km = |index: i64| (index - OFFICE_OFFSET) as f64 * CELL_KM;
        let latitude = office.latitude + km(cell.y) / KM_PER_DEGREE;
        let longitude = office.longitude + km(cell.x) / (office.latitude.to_radians().cos() * KM_PER_DEGREE);
        Some((latitude, longitude))
    }
}

/// Great-circle distance in km between two points in degrees.
pub fn distance_km(latitude: f64, longitude: f64, other_latitude: f64, other_longitude: f64) -> f64 {
    let half_latitude = ((other_latitude - latitude) / 2.0).to_radians().sin();
    let half_longitude = ((other_longitude - longitude) / 2.0).to_radians().sin();
    let chord = half_latitude.powi(2)
        + latitude.to_radians().cos() * other_latitude.to_radians().cos() * half_longitude.powi(2);
    12_742.0 * chord.min(1.0).sqrt().asin()
}

/// Miles, as people in the United States read distances.
pub fn miles(km: f64) -> f64 {
    km / 1.609_344
}

/// Hours to add to UTC in summer, when the stand-in's clock stands. Arizona keeps standard time.
pub fn summer_offset_hours(time_zone: &str) -> i8 {
    match time_zone {
        "Pacific/Honolulu" => -10,
        "America/Anchorage" | "America/Juneau" => -8,
        "America/Los_Angeles" | "America/Phoenix" => -7,
        "America/Denver" | "America/Boise" => -6,
        "America/Chicago" => -5,
        _ => -4,
    }
}

/// Parses a table; a row that does not parse is left out, and a test sees to it that none is.
fn rows<T>(table: &str, parse: impl Fn(&dyn Fn(usize) -> Option<String>) -> Option<T>) -> Vec<T> {
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            parse(&|index| fields.get(index).map(|field| (*field).to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_row_parses_and_every_state_has_places() {
        let geography = geography();
        assert_eq!(geography.places.len(), PLACES.lines().count());
        assert_eq!(geography.stations.len(), STATIONS.lines().count());
        assert_eq!(geography.offices.len(), OFFICES.lines().count());
        assert_eq!(geography.abroad.len(), ABROAD.lines().count());
        assert_eq!(geography.sea.len(), SEA.lines().count());
        assert_eq!(geography.states.len(), 51);
        assert!(geography.places.len() >= 200);
        let with_places: HashSet<&str> = geography.places.iter().map(|place| place.state.as_str()).collect();
        assert_eq!(with_places.len(), 51);
    }

    #[test]
    fn coverage_follows_the_border() {
        let geography = geography();
        for place in &geography.places {
            let coverage = geography.coverage(place.latitude, place.longitude);
            assert!(
                matches!(coverage, Coverage::Land { distance_km, .. } if distance_km < 0.1),
                "{}",
                place.label()
            );
        }
        for place in &geography.abroad {
            assert_eq!(
                geography.coverage(place.latitude, place.longitude),
                Coverage::Outside,
                "{}",
                place.label()
            );
        }
        assert_eq!(geography.coverage(27.5, -92.5), Coverage::Sea);
        assert_eq!(geography.coverage(0.0, 0.0), Coverage::Outside);
    }

    #[test]
    fn a_cell_knows_where_it_is() {
        let geography = geography();
        for place in &geography.places {
            let (cell, _) = geography.grid_cell(place.latitude, place.longitude).unwrap();
            let (latitude, longitude) = geography.cell_centre(&cell).unwrap();
            assert!(
                distance_km(place.latitude, place.longitude, latitude, longitude) < 4.0,
                "{}",
                place.label()
            );
        }
    }

    #[test]
    fn distances_are_those_of_a_globe() {
        let new_york_to_los_angeles = distance_km(40.71, -74.01, 34.05, -118.24);
        assert!(
            (new_york_to_los_angeles - 3936.0).abs() < 10.0,
            "{new_york_to_los_angeles}"
        );
    }
}
