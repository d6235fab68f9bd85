"""The classic control tasks as tensor envs, with the constants of gymnasium's envs of the same names."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Discrete
from zoo.env.tensor.program import TENSOR_ENV_REGISTRY, TensorEnv


def _box(*high: float, low: tuple[float, ...] | None = None) -> Box:
    top = np.array(high, dtype=np.float32)
    if low is None:
        return Box(-top, top)
    return Box(np.array(low, dtype=np.float32), top)


def _wrap(angle: Tensor) -> Tensor:
    return torch.sub(angle, torch.round(angle / math.tau), alpha=math.tau)


@TENSOR_ENV_REGISTRY.register('CartPole-v1')
class CartPole(TensorEnv):
    """Keep a pole upright on a cart that is pushed left or right.

    Source: Barto, Sutton and Anderson 1983 (doi:10.1109/TSMC.1983.6313077); explicit Euler steps of 20 ms.
    """

    max_episode_steps = 500
    n_noise = 4
    gravity = 9.8
    cart_mass = 1.0
    pole_mass = 0.1
    half_length = 0.5
    push = 10.0
    dt = 0.02
    max_position = 2.4
    max_angle = math.radians(12)

    def __init__(self, sutton_barto_reward: bool = False) -> None:
        """sutton_barto_reward: -1 at a fall and 0 before, instead of 1 for every step."""
        self.obs_space = _box(2 * self.max_position, math.inf, 2 * self.max_angle, math.inf)
        self.action_space = Discrete(2)
        self._sutton_barto_reward = sutton_barto_reward
        self._bound = torch.tensor([self.max_position, math.inf, self.max_angle, math.inf])
        mass = self.cart_mass + self.pole_mass
        self._push = self.push / mass
        self._lever = self.pole_mass * self.half_length / mass
        # the pole's inertia is inertia_0 - inertia_2 * cos(angle)^2
        self._inertia_0 = torch.tensor(self.half_length * 4 / 3)
        self._inertia_2 = self.half_length * self.pole_mass / mass

    def reset(self, noise: Tensor) -> Tensor:
        """[N, 4]: position and speed of the cart, angle and angular speed of the pole."""
        return noise * 0.1 - 0.05

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, speed, angle, spin = state.unbind(1)
        sin = angle.sin()
        cos = angle.cos()
        # acceleration of the cart if the pole did not accelerate; the push is -1 or 1
        pull = torch.add(action * (2 * self._push) - self._push, spin * spin * sin, alpha=self._lever)
        torque = torch.addcmul(sin * self.gravity, cos, pull, value=-1)
        spin_rate = torque / torch.addcmul(self._inertia_0, cos, cos, value=-self._inertia_2)
        speed_rate = torch.addcmul(pull, spin_rate, cos, value=-self._lever)
        state = torch.add(state, torch.stack((speed, speed_rate, spin, spin_rate), 1), alpha=self.dt)
        fell = (state.abs() > self._bound).any(1)
        if self._sutton_barto_reward:
            return state, -fell.float(), fell
        return state, torch.ones_like(speed), fell


@TENSOR_ENV_REGISTRY.register('Pendulum-v1')
class Pendulum(TensorEnv):
    """Swing a pendulum up and hold it there with a motor that is too weak to lift it."""

    max_episode_steps = 200
    n_noise = 2
    # mass and length are 1
    max_torque = 2.0
    max_spin = 8.0
    dt = 0.05

    def __init__(self, g: float = 10.0) -> None:
        """g: gravity."""
        self.obs_space = _box(1.0, 1.0, self.max_spin)
        self.action_space = _box(self.max_torque)
        self._fall = 1.5 * g * self.dt  # inertia is 1/3

    def reset(self, noise: Tensor) -> Tensor:
        """[N, 2]: angle from upright, in [-pi, pi], and angular speed."""
        angle, spin = noise.unbind(1)
        return torch.stack((angle * math.tau - math.pi, spin * 2 - 1), 1)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, spin = state.unbind(1)
        torque = action[:, 0]
        cost = torch.addcmul(torch.addcmul(angle * angle, spin, spin, value=0.1), torque, torque, value=0.001)
        spin = torch.add(torch.add(spin, angle.sin(), alpha=self._fall), torque, alpha=3 * self.dt)
        spin = spin.clamp(-self.max_spin, self.max_spin)
        angle = _wrap(torch.add(angle, spin, alpha=self.dt))
        return torch.stack((angle, spin), 1), -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, state: Tensor) -> Tensor:
        angle, spin = state.unbind(1)
        return torch.stack((angle.cos(), angle.sin(), spin), 1)


class _MountainCars(TensorEnv):
    """A car in a valley, too weak to leave it without a swing: the common part of both versions."""

    n_noise = 1
    obs_space = _box(0.6, 0.07, low=(-1.2, -0.07))
    goal_position: float
    min_position = -1.2
    max_position = 0.6
    max_speed = 0.07
    gravity = 0.0025

    def __init__(self, goal_velocity: float = 0.0) -> None:
        """goal_velocity: the least speed at the goal."""
        self._goal_velocity = goal_velocity

    def reset(self, noise: Tensor) -> Tensor:
        """[N, 2]: position and speed."""
        return torch.cat((noise * 0.2 - 0.6, torch.zeros_like(noise)), 1)

    def _drive(self, state: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        """The next states, and whether they are at the goal."""
        position, speed = state.unbind(1)
        speed = torch.add(speed + push, (position * 3).cos(), alpha=-self.gravity)
        speed = speed.clamp(-self.max_speed, self.max_speed)
        position = (position + speed).clamp(self.min_position, self.max_position)
        speed = torch.where(position == self.min_position, speed.clamp(min=0), speed)  # the wall on the left
        return torch.stack((position, speed), 1), (position >= self.goal_position) & (speed >= self._goal_velocity)


@TENSOR_ENV_REGISTRY.register('MountainCar-v0')
class MountainCar(_MountainCars):
    """Reach the flag with as few steps as possible: push left, coast, push right.

    Source: Moore 1990, Efficient memory-based learning for robot control, PhD thesis, Cambridge.
    """

    action_space = Discrete(3)
    max_episode_steps = 200
    goal_position = 0.5

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state, at_goal = self._drive(state, (action - 1) * 0.001)
        return state, torch.full_like(state[:, 0], -1.0), at_goal


@TENSOR_ENV_REGISTRY.register('MountainCarContinuous-v0')
class MountainCarContinuous(_MountainCars):
    """Reach the flag with as little force as possible."""

    action_space = _box(1.0)
    max_episode_steps = 999
    goal_position = 0.45

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        force = action[:, 0]
        state, at_goal = self._drive(state, force * 0.0015)
        return state, torch.addcmul(at_goal * 100.0, force, force, value=-0.1), at_goal


@TENSOR_ENV_REGISTRY.register('Acrobot-v1')
class Acrobot(TensorEnv):
    """Swing two links up to a line above them with a motor at the joint between them.

    Both links have length, mass and moment of inertia 1 and their centre of mass in the middle.

    Source: Sutton and Barto, Reinforcement Learning: An Introduction, 1998, section 11.3; steps of fourth order Runge
      and Kutta, 0.2 s.
    """

    max_episode_steps = 500
    n_noise = 4
    gravity = 9.8
    dt = 0.2
    max_spins = (4 * math.pi, 9 * math.pi)

    def __init__(self) -> None:
        self.obs_space = _box(1.0, 1.0, 1.0, 1.0, *self.max_spins)
        self.action_space = Discrete(3)
        self._max_spins = torch.tensor(self.max_spins)

    def reset(self, noise: Tensor) -> Tensor:
        """[N, 4]: angle of the first link from hanging down, of the second from the first, and their speeds."""
        return noise * 0.2 - 0.1

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torque = action - 1
        dt = self.dt
        k1 = self._rate(state, torque)
        k2 = self._rate(torch.add(state, k1, alpha=dt / 2), torque)
        k3 = self._rate(torch.add(state, k2, alpha=dt / 2), torque)
        k4 = self._rate(torch.add(state, k3, alpha=dt), torque)
        state = torch.add(state, torch.add(k1 + k4, k2 + k3, alpha=2), alpha=dt / 6)
        angles = _wrap(state[:, :2])
        spins = torch.clamp(state[:, 2:], -self._max_spins, self._max_spins)
        first = angles[:, 0]
        is_up = first.cos() + angles.sum(1).cos() < -1
        return torch.cat((angles, spins), 1), is_up.float() - 1, is_up

    def observe(self, state: Tensor) -> Tensor:
        angles = state[:, :2]
        # [N, 2] and [N, 2] -> [N, 4]: cos and sin of the first angle, cos and sin of the second
        return torch.cat((torch.stack((angles.cos(), angles.sin()), 2).flatten(1), state[:, 2:]), 1)

    def _rate(self, state: Tensor, torque: Tensor) -> Tensor:
        """Time derivative of the state: M(angles) @ accelerations = forces, with M = [[d1, d2], [d2, 1.25]]."""
        g = self.gravity
        first, second, spin_1, spin_2 = state.unbind(1)
        sin_2 = second.sin()
        cos_2 = second.cos()
        d1 = cos_2 + 3.5
        d2 = cos_2 * 0.5 + 1.25
        weight_2 = (first + second).sin() * (0.5 * g)
        # Coriolis and centrifugal force on the first joint: -sin_2 * spin_2 * (spin_2 / 2 + spin_1)
        turning = sin_2 * spin_2 * torch.add(spin_1, spin_2, alpha=0.5)
        force_1 = torch.add(weight_2, first.sin(), alpha=1.5 * g) - turning
        force_2 = torch.addcmul(torque - weight_2, sin_2 * spin_1, spin_1, value=-0.5)
        ratio = d2 / d1
        rate_2 = torch.addcmul(force_2, ratio, force_1) / (1.25 - ratio * d2)
        rate_1 = -torch.addcmul(force_1, d2, rate_2) / d1
        return torch.stack((spin_1, spin_2, rate_1, rate_2), 1)
