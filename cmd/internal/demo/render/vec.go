package main

import (
	"encoding/json"
	"math"
)

// vec is a point, a direction or a colour. It is a struct since the compiler keeps those in registers, and arrays not.
type vec struct{ x, y, z float64 }

// UnmarshalJSON reads a list of three numbers.
func (a *vec) UnmarshalJSON(data []byte) error {
	var v [3]float64
	err := json.Unmarshal(data, &v)
	*a = vec{v[0], v[1], v[2]}
	return err
}

func (a vec) add(b vec) vec     { return vec{a.x + b.x, a.y + b.y, a.z + b.z} }
func (a vec) sub(b vec) vec     { return vec{a.x - b.x, a.y - b.y, a.z - b.z} }
func (a vec) times(b vec) vec   { return vec{a.x * b.x, a.y * b.y, a.z * b.z} }
func (a vec) mul(f float64) vec { return vec{a.x * f, a.y * f, a.z * f} }
func (a vec) dot(b vec) float64 { return a.x*b.x + a.y*b.y + a.z*b.z }
func (a vec) length() float64   { return math.Sqrt(a.dot(a)) }
func (a vec) unit() vec         { return a.mul(1 / a.length()) }
func (a vec) mirror(n vec) vec  { return a.sub(n.mul(2 * a.dot(n))) }
func (a vec) cross(b vec) vec {
	return vec{a.y*b.z - a.z*b.y, a.z*b.x - a.x*b.z, a.x*b.y - a.y*b.x}
}
