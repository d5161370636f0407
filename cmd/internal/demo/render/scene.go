package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// Limits of a scene, so that a mistake in it ends at once and not in hours.
const (
	maxScene   = 1 << 20 // bytes of the file
	maxSide    = 8192    // pixels
	maxSamples = 1 << 16 // paths a pixel
	maxSpheres = 4096
)

// scene is what is to be seen. Lengths are in metres, y is up, colours are red, green, blue from 0 to 1.
type scene struct {
	Width   int      `json:"width"`
	Height  int      `json:"height"`
	Samples int      `json:"samples"`
	Eye     vec      `json:"eye"`
	LookAt  vec      `json:"look_at"`
	View    float64  `json:"view"` // vertical angle in degrees
	Lens    float64  `json:"lens"` // radius: what is not at LookAt's distance is blurred by it
	Sun     vec      `json:"sun"`  // direction towards it
	Floor   [2]vec   `json:"floor"`
	Spheres []sphere `json:"spheres"`
}

// sphere is a ball of one material.
type sphere struct {
	Centre vec     `json:"centre"`
	Radius float64 `json:"radius"`
	Colour vec     `json:"colour"`
	Kind   string  `json:"kind"`  // "matte", "metal", "glass", "lamp"
	Rough  float64 `json:"rough"` // of metal, 0 to 1
}

func readScene(path string) (*scene, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) > maxScene {
		return nil, fmt.Errorf("scene %s: it has %d bytes, more than %d", path, len(data), maxScene)
	}
	var s scene
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("scene %s: %w", path, err)
	}
	switch {
	case s.Width < 1 || s.Height < 1 || s.Width > maxSide || s.Height > maxSide:
		return nil, fmt.Errorf("scene %s: %d x %d pixels: want 1 to %d each way", path, s.Width, s.Height, maxSide)
	case s.Samples < 1 || s.Samples > maxSamples:
		return nil, fmt.Errorf("scene %s: %d samples: want 1 to %d", path, s.Samples, maxSamples)
	case len(s.Spheres) > maxSpheres:
		return nil, fmt.Errorf("scene %s: %d spheres: at most %d", path, len(s.Spheres), maxSpheres)
	}
	return &s, nil
}
