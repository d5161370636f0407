package main

import (
	"image"
	"image/color"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

const (
	maxBounces = 12
	exposure   = 0.42 // bright parts keep their colour
	never      = math.MaxFloat64
	near       = 1e-4 // metres: a ray does not meet the surface that it leaves
	sunSize    = 0.04 // tangent of the sun's radius: soft edges of shadows
)

// ray is half a line; dir has length 1.
type ray struct{ from, dir vec }

// hit is where a ray meets something.
type hit struct {
	at     float64 // metres along the ray
	point  vec
	normal vec // outwards
	colour vec
	kind   string
	rough  float64
}

// worker traces rows. It is for one goroutine.
type worker struct {
	*scene
	rnd  *rand.Rand
	rays uint64

	right, up, forward vec // of the camera; right and up span the picture at distance 1
	focus              float64
	sun                vec
}

func (s *scene) worker() *worker {
	w := &worker{scene: s, sun: s.Sun.unit()}
	to := s.LookAt.sub(s.Eye)
	w.focus, w.forward = to.length(), to.unit()
	half := math.Tan(s.View * math.Pi / 360)
	w.right = w.forward.cross(vec{0, 1, 0}).unit()
	w.up = w.right.cross(w.forward).mul(half)
	w.right = w.right.mul(half * float64(s.Width) / float64(s.Height))
	return w
}

// render traces the whole picture on so many cores and tells about every twentieth of it. The picture does not depend on the cores.
func (s *scene) render(cores int, progress func(done, total int)) (*image.RGBA, uint64) {
	img := image.NewRGBA(image.Rect(0, 0, s.Width, s.Height))
	var (
		next  atomic.Int64
		group sync.WaitGroup
		mu    sync.Mutex
		done  int    // guarded by mu
		rays  uint64 // guarded by mu
	)
	step := max(1, s.Height/20)
	for range cores {
		group.Go(func() {
			w := s.worker()
			for {
				y := int(next.Add(1)) - 1
				if y >= s.Height {
					break
				}
				w.row(img, y)
				mu.Lock()
				if done++; done%step == 0 {
					progress(done, s.Height)
				}
				mu.Unlock()
			}
			mu.Lock()
			rays += w.rays
			mu.Unlock()
		})
	}
	group.Wait()
	return img, rays
}

func (w *worker) row(img *image.RGBA, y int) {
	w.rnd = rand.New(rand.NewPCG(1, uint64(y)))
	for x := range w.Width {
		var sum vec
		for range w.Samples {
			sum = sum.add(w.light(w.aim(x, y)))
		}
		c := sum.mul(exposure / float64(w.Samples))
		img.SetRGBA(x, y, color.RGBA{shade(c.x), shade(c.y), shade(c.z), 255})
	}
}

// shade is the brightness of a screen for an amount of light: filmic, after Narkowicz's fit of ACES, then sRGB's power.
func shade(x float64) uint8 {
	x = max(0, x*(2.51*x+0.03)/(x*(2.43*x+0.59)+0.14))
	return uint8(math.Round(255 * math.Pow(min(1, x), 1/2.2)))
}

// aim is a ray from somewhere on the lens through somewhere in a pixel.
func (w *worker) aim(x, y int) ray {
	u := 2*(float64(x)+w.rnd.Float64())/float64(w.Width) - 1
	v := 1 - 2*(float64(y)+w.rnd.Float64())/float64(w.Height)
	target := w.Eye.add(w.forward.add(w.right.mul(u)).add(w.up.mul(v)).mul(w.focus))
	angle, r := 2*math.Pi*w.rnd.Float64(), w.Lens*math.Sqrt(w.rnd.Float64())
	from := w.Eye.add(w.right.unit().mul(r * math.Cos(angle))).add(w.up.unit().mul(r * math.Sin(angle)))
	return ray{from, target.sub(from).unit()}
}

// light follows a ray until it leaves the scene or little light is left, and gives what comes along it.
func (w *worker) light(r ray) vec {
	sum, weight := vec{}, vec{1, 1, 1}
	direct := true // the sun itself is seen: a matte surface has counted it already
	for range maxBounces {
		h, ok := w.meet(r)
		if !ok {
			return sum.add(weight.times(w.sky(r.dir, direct)))
		}
		switch h.kind {
		case "lamp":
			return sum.add(weight.times(h.colour))
		case "metal":
			r = ray{h.point, r.dir.mirror(h.normal).add(w.inBall().mul(h.rough)).unit()}
			if r.dir.dot(h.normal) <= 0 {
				return sum
			}
			weight, direct = weight.times(h.colour), true
		case "glass":
			r = ray{h.point, w.bend(r.dir, h.normal)}
			weight, direct = weight.times(h.colour), true
		default:
			weight = weight.times(h.colour)
			sum = sum.add(weight.times(w.sunAt(h)))
			r = ray{h.point, h.normal.add(w.inBall().unit()).unit()}
			direct = false
		}
		if most := max(weight.x, weight.y, weight.z); most < 0.05 {
			if w.rnd.Float64() > 0.5 {
				return sum
			}
			weight = weight.mul(2)
		}
	}
	return sum
}

// meet finds what a ray meets first.
func (w *worker) meet(r ray) (hit, bool) {
	w.rays++
	at, what := never, -1
	for i := range w.Spheres {
		if t := w.Spheres[i].meets(r); t < at {
			at, what = t, i
		}
	}
	if r.dir.y < -1e-6 {
		if t := -r.from.y / r.dir.y; t > near && t < min(at, 200) {
			p := r.from.add(r.dir.mul(t))
			c := w.Floor[(int(math.Floor(p.x))+int(math.Floor(p.z)))&1]
			return hit{at: t, point: p, normal: vec{0, 1, 0}, colour: c, kind: "matte"}, true
		}
	}
	if what < 0 {
		return hit{}, false
	}
	s := &w.Spheres[what]
	p := r.from.add(r.dir.mul(at))
	return hit{at, p, p.sub(s.Centre).mul(1 / s.Radius), s.Colour, s.Kind, s.Rough}, true
}

// meets is how far along a ray the sphere is, never if it is nowhere.
func (s *sphere) meets(r ray) float64 {
	to := s.Centre.sub(r.from)
	b := to.dot(r.dir)
	d := s.Radius*s.Radius - to.dot(to) + b*b
	if d < 0 {
		return never
	}
	d = math.Sqrt(d)
	if b-d > near {
		return b - d
	}
	if b+d > near {
		return b + d
	}
	return never
}

// sunAt is the sun's light on a matte surface, from one place of its disc. Glass lets it through, as a caustic would cost too much.
func (w *worker) sunAt(h hit) vec {
	dir := w.sun.add(w.inBall().mul(sunSize)).unit()
	slope := dir.dot(h.normal)
	if slope <= 0 {
		return vec{}
	}
	w.rays++
	light := vec{3.2, 2.9, 2.4}.mul(slope)
	for i := range w.Spheres {
		s := &w.Spheres[i]
		if s.meets(ray{h.point, dir}) < never {
			if s.Kind != "glass" {
				return vec{}
			}
			light = light.times(s.Colour).mul(0.6)
		}
	}
	return light
}

// sky is the light from where nothing is.
func (w *worker) sky(dir vec, direct bool) vec {
	t := 0.5 * (dir.y + 1)
	c := vec{0.95, 0.82, 0.72}.mul(1 - t).add(vec{0.25, 0.45, 0.85}.mul(t))
	if near := dir.dot(w.sun); direct && near > 0.998 {
		return vec{30, 27, 22}
	} else if near > 0.9 {
		c = c.add(vec{0.9, 0.6, 0.3}.mul(math.Pow((near-0.9)*10, 3) * 0.5))
	}
	return c
}

// bend is refraction in glass (index 1.5) or, by chance as Schlick's approximation says, reflection.
func (w *worker) bend(dir, normal vec) vec {
	const index = 1.5
	ratio, cos := 1/index, -dir.dot(normal)
	if cos < 0 { // from inside
		normal, ratio, cos = normal.mul(-1), index, -cos
	}
	k := 1 - ratio*ratio*(1-cos*cos)
	r0 := (1 - index) / (1 + index)
	r0 *= r0
	if k < 0 || w.rnd.Float64() < r0+(1-r0)*math.Pow(1-cos, 5) {
		return dir.mirror(normal)
	}
	return dir.mul(ratio).add(normal.mul(ratio*cos - math.Sqrt(k))).unit()
}

// inBall is a random point of the ball of radius 1.
func (w *worker) inBall() vec {
	for {
		p := vec{2*w.rnd.Float64() - 1, 2*w.rnd.Float64() - 1, 2*w.rnd.Float64() - 1}
		if l := p.dot(p); l <= 1 && l > 1e-6 {
			return p
		}
	}
}
