// Package benchmark says what a device can really do: figures, profiles of a run, passports, and the caps above which a claim is
// false. It measures nothing itself and knows neither market nor ledger.
package benchmark

// FigureID names a measured quantity. Ids are never reused; the table of names and units is Figures.
type FigureID uint16

// Figure is one measured quantity as an integer in the unit of its id.
type Figure struct {
	ID    FigureID `cbor:"1,keyasint" json:"id"`
	Value uint64   `cbor:"2,keyasint" json:"value"`
}
